"""Signals that end the process; imports nothing slow, so that they are in order before anything slow is imported."""

from __future__ import annotations

import signal
from types import FrameType

SIGNAL_BASE = 128
"""A process that signal n ended has exit code 128 + n. Source: the shells' convention."""
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndedBySignal(BaseException):
    """A signal asked the process to end; unwinds like Ctrl-C, so staging folders are left in order."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class SignalWatch:
    """Turns ending signals into exceptions and remembers the first one.

    Libraries that are interrupted while they are imported raise errors of their own in place of the exception; what
    is remembered tells them from a fault.
    """

    def __init__(self) -> None:
        self.received: int | None = None

    def start(self) -> None:
        """Watch from here on."""
        for number in _ENDING_SIGNALS:
            signal.signal(number, self._end)

    def stop(self) -> None:
        """Leave the signals to the operating system; at the end of the process nothing is left to unwind."""
        for number in _ENDING_SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    def _end(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or number
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise EndedBySignal(number)
