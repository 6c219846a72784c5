"""What a decode loop is busy with at the moment."""

from __future__ import annotations

from collections.abc import Sequence as Sequences
from dataclasses import dataclass

from peagle_trt.decode.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopLoad:
    """A look at a loop.

    Attributes:
        num_waiting: Requests without a slot.
        num_running: Requests with one.
        num_drafting: Running answers whose drafter was asked for drafts; not those that still read their prompt.
        num_planned_drafts: Drafts asked for, over all of them; divided by `num_drafting` it is the K in use.
        num_cached_tokens: Tokens that the running requests hold in the target's cache.
        num_slots: Requests that may run at once.
        cache_tokens: Tokens that the cache has room for.
    """

    num_waiting: int
    num_running: int
    num_drafting: int
    num_planned_drafts: int
    num_cached_tokens: int
    num_slots: int
    cache_tokens: int


def look(active: Sequences[Sequence], *, num_waiting: int, num_slots: int, max_sequence_length: int) -> LoopLoad:
    """The load of a loop.

    Args:
        active: Sequences with a slot; a copy, for the loop goes on.
        num_waiting: Requests without one.
        num_slots: Slots in all.
        max_sequence_length: Tokens a slot has room for.
    """
    planned = [sequence.planned_drafts for sequence in active if not sequence.is_prefilling]
    return LoopLoad(
        num_waiting=num_waiting,
        num_running=len(active),
        num_drafting=sum(count > 0 for count in planned),
        num_planned_drafts=sum(planned),
        num_cached_tokens=sum(sequence.num_cached for sequence in active),
        num_slots=num_slots,
        cache_tokens=num_slots * max_sequence_length,
    )
