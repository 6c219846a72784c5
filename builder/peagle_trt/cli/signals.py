"""Signals that end the process; imports nothing slow, so that they are in order before anything slow is imported."""

from __future__ import annotations

import signal
from types import FrameType

SIGNAL_BASE = 128
"""A process that signal n ended has exit code 128 + n. Source: the shells' convention."""
_RETRY_SECONDS = 0.002
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndedBySignal(BaseException):
    """A signal asked the process to end; unwinds like Ctrl-C, so staging folders are left in order."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class SignalWatch:
    """Turns ending signals into exceptions, never inside an import, and remembers the first one.

    Extension modules do not expect an exception in the middle of their imports: they crash, or raise an error of their
    own in its place. What is remembered tells such an error from a fault.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._is_watching = False

    def start(self) -> None:
        """Watch from here on."""
        self._is_watching = True
        for number in _ENDING_SIGNALS:
            signal.signal(number, self._receive)
        signal.signal(signal.SIGALRM, self._raise_outside_imports)

    def stop(self) -> None:
        """Let nothing disturb the report on work that is over; only a second signal still ends the process."""
        if not self._is_watching:
            return
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        for number in _ENDING_SIGNALS:
            signal.signal(number, signal.SIG_DFL if self.received else signal.SIG_IGN)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or number
        self._raise_outside_imports(number, frame)

    def _raise_outside_imports(self, _: int, frame: FrameType | None) -> None:
        if _is_importing(frame):
            signal.setitimer(signal.ITIMER_REAL, _RETRY_SECONDS)
        elif self.received == signal.SIGINT:
            raise KeyboardInterrupt
        elif self.received is not None:
            raise EndedBySignal(self.received)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
