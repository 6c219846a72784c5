"""The short speculative decode that a comparison judges.

Letters: T rows, K drafted slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peagle_trt.engine.protocol import DraftRows, Engine, TargetOutput, TargetRows
from peagle_trt.spec import EngineManifest

NUM_PROMPT_TOKENS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """What an engine said in a short speculative decode, and what it was asked.

    Attributes:
        seed: Seed of the prompt.
        text: Prompt, bonus token and drafts.
        num_prompt_tokens: Length of the prompt.
        prompt: Answer to the prompt.
        step: Answer to the verify step.
        drafts: Tokens and logits drafted after the prompt.
        num_accepted: Drafts that count as accepted.
        bonus: Token after the verify step's last row.
        again: Tokens and logits drafted after the verify step.
    """

    seed: int
    text: NDArray[np.int64]
    num_prompt_tokens: int
    prompt: TargetOutput
    step: TargetOutput
    drafts: tuple[NDArray[np.int32], NDArray[np.float32]]
    num_accepted: int
    bonus: int
    again: tuple[NDArray[np.int32], NDArray[np.float32]]


def decode(engine: Engine, manifest: EngineManifest, seed: int) -> Decoded:
    """Prompt, draft, verify step with two accepted drafts, draft again."""
    draft_tokens = manifest.shapes.draft_tokens
    length = num_prompt_tokens(manifest)
    prompt = np.random.default_rng(seed).integers(0, manifest.target.vocab_size, length)
    first = _read_rows(engine, prompt, start=0)
    bonus = int(first.logits[-1].argmax())
    drafts = _draft(engine, np.append(prompt[1:], bonus), first.hidden, length - 1, 0, draft_tokens)
    step = np.concatenate([[bonus], drafts[0]])
    second = _read_rows(engine, step, start=length)
    accepted = min(2, draft_tokens)
    following = np.append(step[1:], second.logits[-1].argmax())
    again = _draft(engine, following, second.hidden, accepted, length, draft_tokens)
    return Decoded(
        seed=seed,
        text=np.concatenate([prompt, step]).astype(np.int64),
        num_prompt_tokens=length,
        prompt=first,
        step=second,
        drafts=drafts,
        num_accepted=accepted,
        bonus=int(following[-1]),
        again=again,
    )


def num_prompt_tokens(manifest: EngineManifest) -> int:
    """Length of the prompt: past the longest window, so that it is seen to end, as far as the cache allows."""
    past_window = max(manifest.target.attention_windows, default=0) + NUM_PROMPT_TOKENS
    return min(past_window, max(NUM_PROMPT_TOKENS, manifest.shapes.max_sequence_length - manifest.shapes.draft_tokens))


def _read_rows(engine: Engine, token_ids: NDArray[np.int64], *, start: int) -> TargetOutput:
    """Run the target over rows of slot 0; its answer is copied, for the engine reuses the memory."""
    rows = TargetRows(slot=0, token_ids=token_ids.astype(np.int32), start_position=start, num_logit_rows=len(token_ids))
    (output,) = engine.run_target([rows])
    return TargetOutput(logits=output.logits.copy(), hidden=output.hidden.copy())


def _draft(
    engine: Engine,
    next_token_ids: NDArray[np.int64],
    hidden: NDArray[np.float32],
    num_accepted: int,
    start: int,
    draft_tokens: int,
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Draft for slot 0: tokens [K] and logits [K, Vd]."""
    output = engine.run_drafter([rows_to_draft(0, next_token_ids, hidden, num_accepted, start)], draft_tokens)
    return output.token_ids[0].copy(), output.logits[0].copy()


def rows_to_draft(
    slot: int, next_token_ids: NDArray[np.int64], hidden: NDArray[np.float32], num_accepted: int, start: int
) -> DraftRows:
    """Rows of one slot for the drafter."""
    return DraftRows(
        slot=slot,
        next_token_ids=next_token_ids.astype(np.int32),
        hidden=hidden,
        num_accepted=num_accepted,
        start_position=start,
    )
