"""The short speculative decode that a comparison judges.

Letters: T rows, K drafted slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peagle_trt.engine.protocol import DraftOutput, DraftRows, Engine, HiddenRows, TargetOutput, TargetRows, host_rows
from peagle_trt.engine.sequential import draft_in_turn
from peagle_trt.spec import EngineManifest

NUM_PROMPT_TOKENS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOutput:
    """A copy of what an engine's target said, in this process's memory.

    Attributes:
        logits: [T, V] float32.
        hidden: [T, A*H] float32.
        greedy_token_ids: [T] int32, or None from an engine that gives logits alone.
    """

    logits: NDArray[np.float32]
    hidden: NDArray[np.float32]
    greedy_token_ids: NDArray[np.int32] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """A copy of what an engine drafted for one sequence; logits, or candidates in their place.

    Attributes:
        token_ids: [K] int32.
        logits: [K, Vd] float32, or None.
        candidate_ids: [K, M] int32, or None.
        probabilities: [K, M] float32, or None.
    """

    token_ids: NDArray[np.int32]
    logits: NDArray[np.float32] | None = None
    candidate_ids: NDArray[np.int32] | None = None
    probabilities: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """What an engine said in a short speculative decode, and what it was asked.

    Attributes:
        seed: Seed of the prompt.
        text: Prompt, bonus token and drafts.
        num_prompt_tokens: Length of the prompt.
        prompt: Answer to the prompt.
        step: Answer to the verify step.
        drafts: Drafted after the prompt.
        num_accepted: Drafts that count as accepted.
        bonus: Token after the verify step's last row.
        again: Drafted after the verify step.
    """

    seed: int
    text: NDArray[np.int64]
    num_prompt_tokens: int
    prompt: HostOutput
    step: HostOutput
    drafts: Drafted
    num_accepted: int
    bonus: int
    again: Drafted


def decode(engine: Engine, manifest: EngineManifest, seed: int) -> Decoded:
    """Prompt, draft, verify step with two accepted drafts, draft again."""
    draft_tokens = manifest.shapes.draft_tokens
    length = num_prompt_tokens(manifest)
    prompt = np.random.default_rng(seed).integers(0, manifest.target.vocab_size, length)
    first = _read_rows(engine, prompt, start=0)
    bonus = int(first.logits[-1].argmax())
    drafts = _draft(engine, np.append(prompt[1:], bonus), first.hidden, length - 1, 0, draft_tokens)
    step = np.concatenate([[bonus], drafts.token_ids])
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


def _read_rows(engine: Engine, token_ids: NDArray[np.int64], *, start: int) -> HostOutput:
    """Run the target over rows of slot 0; its answer is copied, for the engine reuses the memory."""
    rows = TargetRows(slot=0, token_ids=token_ids.astype(np.int32), start_position=start, num_logit_rows=len(token_ids))
    (output,) = engine.run_target([rows])
    return copy_output(output)


def copy_output(output: TargetOutput) -> HostOutput:
    """An answer of the target that outlives the engine's next call."""
    best = output.greedy_token_ids
    return HostOutput(
        logits=output.logits.copy(),
        hidden=host_rows(output.hidden).copy(),
        greedy_token_ids=None if best is None else best.copy(),
    )


def copy_drafted(output: DraftOutput, index: int) -> Drafted:
    """One sequence's drafts, which outlive the engine's next call."""
    token_ids = output.token_ids[index].copy()
    if output.candidates is None:
        assert output.logits is not None, "an engine gives candidates or logits"
        return Drafted(token_ids=token_ids, logits=output.logits[index].copy())
    return Drafted(
        token_ids=token_ids,
        candidate_ids=output.candidates.token_ids[index].copy(),
        probabilities=output.candidates.probabilities[index].copy(),
    )


def _draft(
    engine: Engine,
    next_token_ids: NDArray[np.int64],
    hidden: HiddenRows,
    num_accepted: int,
    start: int,
    draft_tokens: int,
) -> Drafted:
    """Draft for slot 0."""
    (drafted,) = draft(engine, [rows_to_draft(0, next_token_ids, hidden, num_accepted, start)], draft_tokens)
    return drafted


def draft(engine: Engine, rows: Sequence[DraftRows], draft_tokens: int) -> list[Drafted]:
    """K drafts for every sequence, in one pass or in as many as the head takes."""
    if engine.drafter.is_parallel:
        output = engine.run_drafter(rows, draft_tokens)
        return [copy_drafted(output, index) for index in range(len(rows))]
    passes: list[list[Drafted]] = [[] for _ in rows]

    def choose(place: int, output: DraftOutput, index: int) -> int:
        passes[place].append(copy_drafted(output, index))
        return int(output.token_ids[index, 0])

    draft_in_turn(engine, rows, [draft_tokens] * len(rows), choose)
    return [_joined(each) for each in passes]


def _joined(passes: Sequence[Drafted]) -> Drafted:
    logits = [each.logits for each in passes if each.logits is not None]
    return Drafted(
        token_ids=np.concatenate([each.token_ids for each in passes]), logits=np.concatenate(logits) if logits else None
    )


def rows_to_draft(
    slot: int, next_token_ids: NDArray[np.int64], hidden: HiddenRows, num_accepted: int, start: int
) -> DraftRows:
    """Rows of one slot for the drafter."""
    return DraftRows(
        slot=slot,
        next_token_ids=next_token_ids.astype(np.int32),
        hidden=hidden,
        num_accepted=num_accepted,
        start_position=start,
    )
