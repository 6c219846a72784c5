"""What a backend must offer to the decode loop.

Letters: T rows of all groups together, V vocabulary, A auxiliary states, H hidden size of the target,
B sequences of a draft pass, R rows each carries over from the verify step, K drafted slots, D draft vocabulary,
M candidates of a slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from peagle_trt.spec import DrafterConfig, GraphShapes, TargetConfig


class DeviceRows(Protocol):
    """Rows in a device's memory, which a drafter pass of the same engine reads where they are."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and width."""
        ...

    def to_host(self) -> NDArray[np.float32]:
        """A copy in this process's memory."""
        ...


HiddenRows = NDArray[np.float32] | DeviceRows
"""Auxiliary hidden states, wherever the engine left them; `host_rows` reads them."""


def host_rows(hidden: HiddenRows) -> NDArray[np.float32]:
    """Hidden states as numbers: the very array, or a copy from the device."""
    return hidden if isinstance(hidden, np.ndarray) else hidden.to_host()


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRows:
    """Consecutive tokens of one sequence for the target to read.

    Attributes:
        slot: Cache the sequence owns.
        token_ids: [n] int32, n >= 1.
        start_position: Position of the first token; every earlier position is already in the cache.
        num_logit_rows: How many of the last rows need logits; 0 for all but the last chunk of a prompt.
        needs_logits: False where the most likely token of each of these rows is enough; an engine may then leave the
            logits on its device and give `greedy_token_ids`.
    """

    slot: int
    token_ids: NDArray[np.int32]
    start_position: int
    num_logit_rows: int
    needs_logits: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOutput:
    """What the target says about one sequence's rows.

    Attributes:
        logits: [num_logit_rows, V] float32, valid until the next call; [0, V] where `greedy_token_ids` stand for them.
        hidden: [n, A*H], auxiliary hidden states of every row, valid until the next call.
        greedy_token_ids: [num_logit_rows] int32, the argmax of the logits, the lowest id of equals; None from an engine
            that gives logits alone.
    """

    logits: NDArray[np.float32]
    hidden: HiddenRows
    greedy_token_ids: NDArray[np.int32] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRows:
    """A verify step's outcome (or a chunk of a prompt) for the drafter to continue from.

    Attributes:
        slot: Cache the sequence owns.
        next_token_ids: [R] int32; entry j is the token that follows row j. Entries past `num_accepted` are ignored.
        hidden: [R, A*H], auxiliary hidden states of the rows. Rows past `num_accepted` are ignored.
        num_accepted: Rows 0..num_accepted are real; the last of them carries the bonus token. 0..R-1.
        start_position: Position of row 0.
    """

    slot: int
    next_token_ids: NDArray[np.int32]
    hidden: HiddenRows
    num_accepted: int
    start_position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCandidates:
    """The likeliest tokens of every slot, from an engine that does not give all logits.

    Attributes:
        token_ids: [B, K, M] int32, best first, ids of the target's vocabulary.
        probabilities: [B, K, M] float32, softmax of their logits at temperature 1 among the M.
    """

    token_ids: NDArray[np.int32]
    probabilities: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOutput:
    """K drafted tokens for every sequence of the pass, in the order of the call.

    Attributes:
        token_ids: [B, K] int32, ids of the target's vocabulary.
        logits: [B, K, D] float32 over the draft vocabulary, valid until the next call; None beside `candidates`.
        candidates: What stands for the logits, or None.
        next_hidden: [B, H of the drafter] float32, the state that goes with the drafted token into a `DraftStep`,
            valid until the next call; None from a parallel head.
    """

    token_ids: NDArray[np.int32]
    logits: NDArray[np.float32] | None = None
    candidates: DraftCandidates | None = None
    next_hidden: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftStep:
    """A drafted token for a sequential head to continue from.

    Attributes:
        slot: Cache the sequence owns.
        token_id: The draft.
        hidden: [H of the drafter] float32, `next_hidden` of the pass that drafted it.
        position: One past the position of the row that drafted it.
    """

    slot: int
    token_id: int
    hidden: NDArray[np.float32]
    position: int


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
        """Draft for up to `max_batch_size` different slots in ONE drafter forward.

        A sequential head drafts one token: K is 1.
        """
        ...

    def preload(self, *, plain_steps: bool = True) -> None:
        """Load whatever is loaded at first use, so that no request waits for it.

        Args:
            plain_steps: Also what only plain decoding of several sequences at once needs; otherwise that is loaded, if
                such steps come in numbers, between two of them.
        """
        ...

    def close(self) -> None:
        """Free what is loaded; safe to call twice, and a later pass loads again what it needs."""
        ...


@runtime_checkable
class CopyingEngine(Engine, Protocol):
    """An engine that hands a slot what another slot's caches hold, so that one prompt is read once for many answers."""

    def copy_rows(self, source_slot: int, target_slot: int, num_rows: int) -> None:
        """Copy the first rows of a slot's caches, the target's and the drafter's, over those of another.

        Rows that the source's drafter has not read are copied too, and mean nothing.
        """
        ...


@runtime_checkable
class SteppingEngine(Engine, Protocol):
    """An engine that may hold something of its own for plain steps of several sequences."""

    def preload_steps(self) -> bool:
        """Load that now, and nothing else.

        Returns:
            Whether there is such a thing.
        """
        ...


@runtime_checkable
class SequentialEngine(Engine, Protocol):
    """An engine that runs plain EAGLE-3 heads, whose every pass after the first continues from its own draft."""

    def step_drafter(self, rows: Sequence[DraftStep]) -> DraftOutput:
        """Draft one more token for up to `max_batch_size` different slots in one drafter forward."""
        ...
