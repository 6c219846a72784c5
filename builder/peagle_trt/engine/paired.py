"""The target of one engine with the drafter of another, as one engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from peagle_trt.engine.protocol import (
    CopyingEngine,
    DraftOutput,
    DraftRows,
    DraftStep,
    Engine,
    SequentialEngine,
    TargetOutput,
    TargetRows,
    host_rows,
)
from peagle_trt.errors import UsageError


class PairedEngine:
    """See `engine.protocol.SequentialEngine`. Hidden states go through this process's memory.

    Args:
        target: Whose target runs.
        drafter: Whose drafter runs; the caches of both stay their own.

    Raises:
        UsageError: The drafter was made for another target, or the two have other limits.
    """

    def __init__(self, target: Engine, drafter: Engine) -> None:
        _require_fit(target, drafter)
        self.target = target.target
        self.drafter = drafter.drafter
        self.shapes = target.shapes
        self.draft_to_target = drafter.draft_to_target
        self._target = target
        self._drafter = drafter

    def run_target(self, rows: Sequence[TargetRows]) -> list[TargetOutput]:
        """See the target's engine."""
        return [replace(output, hidden=host_rows(output.hidden)) for output in self._target.run_target(rows)]

    def run_drafter(self, rows: Sequence[DraftRows], draft_tokens: int) -> DraftOutput:
        """See the drafter's engine."""
        return self._drafter.run_drafter(rows, draft_tokens)

    def step_drafter(self, rows: Sequence[DraftStep]) -> DraftOutput:
        """See the drafter's engine.

        Raises:
            ValueError: It runs no sequential heads.
        """
        if not isinstance(self._drafter, SequentialEngine):
            raise ValueError("the drafter's engine runs no sequential heads")
        return self._drafter.step_drafter(rows)

    def copy_rows(self, source_slot: int, target_slot: int, num_rows: int) -> None:
        """See `engine.protocol.CopyingEngine`.

        Raises:
            ValueError: One of the two engines cannot.
        """
        if not isinstance(self._target, CopyingEngine) or not isinstance(self._drafter, CopyingEngine):
            raise ValueError("one of the two engines cannot copy rows")
        for engine in (self._target, self._drafter):
            engine.copy_rows(source_slot, target_slot, num_rows)

    def preload(self, *, plain_steps: bool = True) -> None:
        """Load both engines."""
        self._target.preload(plain_steps=plain_steps)
        self._drafter.preload(plain_steps=False)

    def close(self) -> None:
        """Free both engines."""
        self._target.close()
        self._drafter.close()


def _require_fit(target: Engine, drafter: Engine) -> None:
    limits = [
        (each.max_draft_tokens, each.max_batch_size, each.max_sequence_length, each.cache_capacity)
        for each in (target.shapes, drafter.shapes)
    ]
    if target.target != drafter.target:
        raise UsageError(
            "the drafter's build is of another target, whose hidden states are others",
            hint="build both from the same target and head",
        )
    if limits[0] != limits[1]:
        raise UsageError(
            f"target and drafter have other limits (K, batch, length, cache): {limits[0]} and {limits[1]}",
            hint="build both with the same --max-batch-size and --max-sequence-length",
        )
