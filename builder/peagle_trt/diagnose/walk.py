"""Acceptance of a head on recorded answers: the target's greedy text is known, so only the drafter runs.

Letters: T tokens of a recording, A auxiliary states, H hidden size of the target, K drafted slots.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peagle_trt.engine.protocol import DraftRows, Engine

PROMPT_ROWS_A_PASS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A greedy answer of the target with the residual streams of every row.

    Attributes:
        token_ids_T: Prompt and answer, [T] int32.
        prompt_length: Tokens of the prompt.
        streams: Layer id to the stream that enters it, [T-1, H] float32 each.
    """

    token_ids_T: NDArray[np.int32]
    prompt_length: int
    streams: dict[int, NDArray[np.float32]]

    def hidden(self, layer_ids: Sequence[int]) -> NDArray[np.float32]:
        """Streams side by side as a head reads them, [T-1, A*H]."""
        return np.concatenate([self.streams[layer] for layer in layer_ids], axis=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Counts of a walk.

    Attributes:
        num_steps: Verify steps.
        accepted_by_position: Steps that accepted slot k, [K].
    """

    num_steps: int
    accepted_by_position: tuple[int, ...]

    @property
    def length(self) -> float:
        """Tokens a verify step, bonus counted."""
        return 1.0 + sum(self.accepted_by_position) / max(1, self.num_steps)

    @property
    def length_error(self) -> float:
        """Standard error of `length`, steps taken as independent."""
        steps = max(1, self.num_steps)
        mean = sum(self.accepted_by_position) / steps
        # A step that accepted n drafts is counted at n positions, and the first n odd numbers add up to n squared.
        squares = sum((2 * slot + 1) * accepted for slot, accepted in enumerate(self.accepted_by_position)) / steps
        return math.sqrt(max(0.0, squares - mean * mean) / steps)

    @property
    def rates(self) -> tuple[float, ...]:
        """Share of steps that accepted slot k, [K]."""
        return tuple(accepted / max(1, self.num_steps) for accepted in self.accepted_by_position)

    @property
    def last_rates(self) -> tuple[float, ...]:
        """Share of slot k among the steps that accepted every slot before it, [K]."""
        before = (self.num_steps, *self.accepted_by_position[:-1])
        return tuple(now / max(1, then) for now, then in zip(self.accepted_by_position, before, strict=True))


def walk(engine: Engine, recordings: Sequence[Recording], layer_ids: Sequence[int], draft_tokens: int) -> Acceptance:
    """Draft through every recording as a greedy decode loop would.

    A step counts only where the recording holds all K tokens after it, so that every slot has had its chance.

    Args:
        engine: Its drafter is the one to walk; its target is not run.
        recordings: Answers of the target.
        layer_ids: Streams the drafter reads.
        draft_tokens: K.
    """
    num_steps, accepted_by_position = 0, np.zeros(draft_tokens, np.int64)
    for recording in recordings:
        hidden, tokens = recording.hidden(layer_ids), recording.token_ids_T
        start = _read_prompt(engine, recording, hidden)
        end = recording.prompt_length
        while end + 1 + draft_tokens <= len(tokens):
            drafts = _draft(engine, tokens, hidden, start, end, draft_tokens)
            agrees = drafts == tokens[end + 1 : end + 1 + draft_tokens]
            accepted = draft_tokens if agrees.all() else int(agrees.argmin())
            accepted_by_position[:accepted] += 1
            num_steps += 1
            start, end = end, end + accepted + 1
    return Acceptance(num_steps=num_steps, accepted_by_position=tuple(accepted_by_position.tolist()))


def _read_prompt(engine: Engine, recording: Recording, hidden: NDArray[np.float32]) -> int:
    """Fill the drafter's cache with all but the last rows of a prompt; returns the first row still to read."""
    start = 0
    while recording.prompt_length - start > PROMPT_ROWS_A_PASS:
        _draft(engine, recording.token_ids_T, hidden, start, start + PROMPT_ROWS_A_PASS, 1)
        start += PROMPT_ROWS_A_PASS
    return start


def _draft(
    engine: Engine,
    tokens: NDArray[np.int32],
    hidden: NDArray[np.float32],
    start: int,
    end: int,
    draft_tokens: int,
) -> NDArray[np.int32]:
    """Drafts after rows `start .. end-1`, whose last one carries the bonus token `tokens[end]`; [K]."""
    rows = DraftRows(
        slot=0,
        next_token_ids=np.ascontiguousarray(tokens[start + 1 : end + 1]),
        hidden=np.ascontiguousarray(hidden[start:end]),
        num_accepted=end - start - 1,
        start_position=start,
    )
    drafted: NDArray[np.int32] = engine.run_drafter([rows], draft_tokens).token_ids[0].copy()
    return drafted
