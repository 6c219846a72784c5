"""Time of passes: the CPU's for backends that compute on it, so that other programs count little; else the clock's."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from peagle_trt.engine.protocol import DraftOutput, DraftRows, Engine, TargetOutput, TargetRows

CPU_BACKENDS = ("onnxruntime",)

Clock = Callable[[], float]


def clock_for(backend: str) -> Clock:
    """The clock that says what a pass of a backend costs."""
    return time.process_time if backend in CPU_BACKENDS else time.perf_counter


class TimedEngine:
    """An engine whose passes are timed together, to tell them from the loop around them.

    Args:
        engine: The engine.
        clock: Seconds.

    Attributes:
        pass_seconds: Time spent in passes.
    """

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self.target = engine.target
        self.drafter = engine.drafter
        self.shapes = engine.shapes
        self.draft_to_target = engine.draft_to_target
        self.pass_seconds = 0.0
        self._engine = engine
        self._clock = clock

    def run_target(self, rows: Sequence[TargetRows]) -> list[TargetOutput]:
        """See `Engine`."""
        started = self._clock()
        try:
            return self._engine.run_target(rows)
        finally:
            self.pass_seconds += self._clock() - started

    def run_drafter(self, rows: Sequence[DraftRows], draft_tokens: int) -> DraftOutput:
        """See `Engine`."""
        started = self._clock()
        try:
            return self._engine.run_drafter(rows, draft_tokens)
        finally:
            self.pass_seconds += self._clock() - started

    def preload(self, *, plain_steps: bool = True) -> None:
        """See `Engine`."""
        self._engine.preload(plain_steps=plain_steps)

    def close(self) -> None:
        """See `Engine`."""
        self._engine.close()
