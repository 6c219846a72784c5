"""Several answers to one prompt: the first reads it, the others wait and go on from its rows."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from peagle_trt.decode.loop_statistics import LoopStatistics
from peagle_trt.decode.sequence import Sequence
from peagle_trt.engine.protocol import CopyingEngine, Engine


class SharedPrompts:
    """Hands the rows of a prompt from slot to slot, where the engine can; elsewhere every answer reads for itself.

    Args:
        engine: Whose caches hold the rows.
        statistics: Where rows are counted that need not be read again.
    """

    def __init__(self, engine: Engine, statistics: LoopStatistics) -> None:
        self._engine = engine if isinstance(engine, CopyingEngine) else None
        self._statistics = statistics

    def readers(self, active: SequenceOf[Sequence]) -> list[Sequence]:
        """Those that read their prompt now, in order; the others of a group wait for its first one.

        Args:
            active: All that have a slot, those that came first before the others.
        """
        prefilling = [sequence for sequence in active if sequence.is_prefilling]
        if self._engine is None:
            return prefilling
        firsts = _firsts(active)
        return [
            sequence
            for sequence in prefilling
            if (first := _first_of(firsts, sequence)) is sequence or not first.is_prefilling
        ]

    def hand_over(self, active: SequenceOf[Sequence]) -> None:
        """Give the rows of every prompt that has been read to those that wait for them."""
        if self._engine is None:
            return
        firsts = _firsts(active)
        for sequence in active:
            first = _first_of(firsts, sequence)
            if first is sequence or first.is_prefilling or not sequence.is_prefilling:
                continue
            num_before = sequence.num_prompt_read
            num_rows = sequence.take_over(first)
            if num_rows:
                self._engine.copy_rows(first.slot, sequence.slot, num_rows)
                self._statistics.num_reused_tokens += num_rows - num_before


def _firsts(active: SequenceOf[Sequence]) -> dict[str, Sequence]:
    firsts: dict[str, Sequence] = {}
    for sequence in active:
        if sequence.request.prompt_group is not None:
            firsts.setdefault(sequence.request.prompt_group, sequence)
    return firsts


def _first_of(firsts: dict[str, Sequence], sequence: Sequence) -> Sequence:
    """The first of its group; itself without one."""
    group = sequence.request.prompt_group
    return sequence if group is None else firsts[group]
