"""What a backend must offer to the decode loop.

Letters: T rows of all groups together, V vocabulary, A auxiliary states, H hidden size of the target,
B sequences of a draft pass, R rows each carries over from the verify step, K drafted slots, D draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from peagle_trt.spec import DrafterConfig, GraphShapes, TargetConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRows:
    """Consecutive tokens of one sequence for the target to read.

    Attributes:
        slot: Cache the sequence owns.
        token_ids: [n] int32, n >= 1.
        start_position: Position of the first token; every earlier position is already in the cache.
        num_logit_rows: How many of the last rows need logits; 0 for all but the last chunk of a prompt.
    """

    slot: int
    token_ids: NDArray[np.int32]
    start_position: int
    num_logit_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOutput:
    """What the target says about one sequence's rows.

    Attributes:
        logits: [num_logit_rows, V] float32, valid until the next call.
        hidden: [n, A*H] float32, auxiliary hidden states of every row, valid until the next call.
    """

    logits: NDArray[np.float32]
    hidden: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRows:
    """A verify step's outcome (or a chunk of a prompt) for the drafter to continue from.

    Attributes:
        slot: Cache the sequence owns.
        next_token_ids: [R] int32; entry j is the token that follows row j. Entries past `num_accepted` are ignored.
        hidden: [R, A*H] float32, auxiliary hidden states of the rows. Rows past `num_accepted` are ignored.
        num_accepted: Rows 0..num_accepted are real; the last of them carries the bonus token. 0..R-1.
        start_position: Position of row 0.
    """

    slot: int
    next_token_ids: NDArray[np.int32]
    hidden: NDArray[np.float32]
    num_accepted: int
    start_position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOutput:
    """K drafted tokens for every sequence of the pass, in the order of the call.

    Attributes:
        token_ids: [B, K] int32, ids of the target's vocabulary.
        logits: [B, K, D] float32 over the draft vocabulary, valid until the next call.
    """

    token_ids: NDArray[np.int32]
    logits: NDArray[np.float32]


class Engine(Protocol):
    """A target and its drafter, with a cache for every slot. Not thread-safe: one thread drives it."""

    target: TargetConfig
    drafter: DrafterConfig
    shapes: GraphShapes
    draft_to_target: NDArray[np.int64]
    """[D] int64: id in the target's vocabulary of every draft id."""

    def run_target(self, rows: Sequence[TargetRows]) -> list[TargetOutput]:
        """Read rows of up to `max_batch_size` different slots in one pass; appends to their caches."""
        ...

    def run_drafter(self, rows: Sequence[DraftRows], draft_tokens: int) -> DraftOutput:
        """Draft for up to `max_batch_size` different slots in ONE drafter forward."""
        ...

    def preload(self) -> None:
        """Load whatever is loaded at first use, so that no request waits for it."""
        ...

    def close(self) -> None:
        """Free what is loaded; safe to call twice, and a later pass loads again what it needs."""
        ...
