"""The shapes an engine is tuned for: one profile for chunks of a prompt, one or two for steps of running answers.

Letters: B sequences, S rows of the target, L rows with logits, R rows carried over to the drafter, K drafted slots.
"""

from __future__ import annotations

from peagle_trt.engine.batched_pass import MAX_LOGIT_ROWS, PROMPT_CHUNK_ROWS
from peagle_trt.spec import EngineProfile, GraphShapes

PROMPT = "prompt"
"""Name of the profile that reads prompts; the others are steps."""


def target_profiles(shapes: GraphShapes) -> tuple[EngineProfile, ...]:
    """Profiles of the target."""
    rows = shapes.max_draft_tokens + 1
    usual = shapes.draft_tokens + 1
    prompt = {"B": (1, 1, 1), "S": _up_to(_longest_chunk(shapes)), "L": (1, 1, MAX_LOGIT_ROWS)}
    step = {"S": (1, usual, rows), "L": (1, usual, rows)}
    return _profiles(prompt, step, shapes.max_batch_size)


def drafter_profiles(shapes: GraphShapes) -> tuple[EngineProfile, ...]:
    """Profiles of the drafter."""
    slots = (1, shapes.draft_tokens, shapes.max_draft_tokens)
    prompt = {"B": (1, 1, 1), "R": _up_to(_longest_chunk(shapes)), "K": slots}
    step = {"R": (1, shapes.draft_tokens + 1, shapes.max_draft_tokens + 1), "K": slots}
    return _profiles(prompt, step, shapes.max_batch_size)


def _profiles(
    prompt: dict[str, tuple[int, int, int]], step: dict[str, tuple[int, int, int]], max_batch_size: int
) -> tuple[EngineProfile, ...]:
    """Steps first, since the first profile that holds a pass takes it and a prompt's holds a single answer's step.

    A single answer has a profile of its own: kernels that are best for many are not for one.
    """
    found = [EngineProfile(name="step.b1", dims={"B": (1, 1, 1), **step})]
    if max_batch_size > 1:
        batch = (2, max_batch_size, max_batch_size)
        found.append(EngineProfile(name=f"step.b{max_batch_size}", dims={"B": batch, **step}))
    return (*found, EngineProfile(name=PROMPT, dims=prompt))


def _longest_chunk(shapes: GraphShapes) -> int:
    """Rows of a prompt's longest chunk: TensorRT refuses more than a cache holds, the masked slots behind it included.

    A prompt is always shorter: a cache has more room than that behind the longest sequence.
    """
    return min(PROMPT_CHUNK_ROWS, shapes.cache_capacity - shapes.max_draft_tokens)


def _up_to(size: int) -> tuple[int, int, int]:
    return (1, size, size)
