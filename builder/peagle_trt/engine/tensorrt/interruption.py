"""Ctrl-C while TensorRT compiles: what a signal raises inside one of its callbacks would be swallowed by it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class HeldSignals:
    """Signals that came and wait.

    Attributes:
        first: The first of them, or None.
    """

    def __init__(self) -> None:
        self.first: int | None = None

    def hold(self, number: int, _: FrameType | None) -> None:
        """Remember a signal."""
        self.first = self.first or number


@contextlib.contextmanager
def holding_signals() -> Iterator[HeldSignals]:
    """Hold back the signals that end a process, and let the first of them through at the end.

    In a thread other than the main one, which signals never disturb, nothing is held.
    """
    held = HeldSignals()
    if threading.current_thread() is not threading.main_thread():
        yield held
        return
    previous = {number: signal.signal(number, held.hold) for number in _SIGNALS}
    try:
        yield held
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        if held.first is not None:
            signal.raise_signal(held.first)


def make_monitor(trt: Any, held: HeldSignals) -> Any:
    """A monitor of TensorRT's that ends a compilation soon after a signal came."""
    base: type[Any] = trt.IProgressMonitor

    class Monitor(base):  # type: ignore[misc]
        """Counts nothing; is asked after every step."""

        def __init__(self) -> None:
            base.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            pass

        def step_complete(self, phase_name: str, step: int) -> bool:
            return held.first is None

        def phase_finish(self, phase_name: str) -> None:
            pass

    return Monitor()
