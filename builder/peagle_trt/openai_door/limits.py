"""How much clients may ask for: answers at once, and requests a minute."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from peagle_trt.openai_door.refusals import too_many

SECONDS_PER_MINUTE = 60.0
MAX_CLIENTS = 10_000
"""Clients remembered; beyond it the one that asked longest ago is forgotten."""
BUSY_RETRY_SECONDS = 1.0


class AnswerLimit:
    """How many answers may be written at once.

    Args:
        max_answers: The limit.
    """

    def __init__(self, max_answers: int) -> None:
        self._max_answers = max_answers
        self._num_answers = 0

    @contextlib.contextmanager
    def room_for(self, num_answers: int) -> Iterator[None]:
        """Holds room while answers are written.

        Raises:
            RefusalError: There is too little.
        """
        if self._num_answers + num_answers > self._max_answers:
            raise too_many(f"{self._num_answers} of {self._max_answers} answers are being written", BUSY_RETRY_SECONDS)
        self._num_answers += num_answers
        try:
            yield
        finally:
            self._num_answers -= num_answers


class RequestRate:
    """How often each client may ask: a bucket that holds a minute's worth and fills all the time.

    Args:
        requests_per_minute: Its size; 0 is without a limit.
        now: A clock, in seconds.
    """

    def __init__(self, requests_per_minute: int, now: Callable[[], float] = time.monotonic) -> None:
        self._size = requests_per_minute
        self._now = now
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, client: str) -> None:
        """Counts a request.

        Args:
            client: Who asks.

        Raises:
            RefusalError: The client has asked too often.
        """
        if not self._size:
            return
        now = self._now()
        left, seen = self._buckets.pop(client, (float(self._size), now))
        rate = self._size / SECONDS_PER_MINUTE
        left = min(float(self._size), left + (now - seen) * rate)
        self._buckets[client] = (left - 1.0 if left >= 1.0 else left, now)
        if len(self._buckets) > MAX_CLIENTS:
            del self._buckets[next(iter(self._buckets))]
        if left < 1.0:
            raise too_many(f"more than {self._size} requests a minute", (1.0 - left) / rate)
