"""Requests that wait for a slot: the most important first, and among equals the one that came first."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

from peagle_trt.decode.request import GenerationRequest
from peagle_trt.errors import OverloadError


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A request in the line.

    Attributes:
        request: The request.
        submitted_at: When it came, seconds of `time.monotonic`.
        due_at: When its time is up, seconds of the loop's clock; infinity without a deadline.
    """

    request: GenerationRequest
    submitted_at: float
    due_at: float


class WaitingLine:
    """A line of limited length.

    Args:
        max_length: Requests that may wait; None for any number.
    """

    def __init__(self, max_length: int | None = None) -> None:
        self._max_length = max_length
        self._heap: list[tuple[int, int, Waiting]] = []
        self._numbers = itertools.count()
        self._earliest_due_at = math.inf

    @property
    def earliest_due_at(self) -> float:
        """No request that waits is due before; a long line need not be searched until then."""
        return self._earliest_due_at

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, waiting: Waiting) -> None:
        """Join the line.

        Raises:
            OverloadError: It is full.
        """
        if self._max_length is not None and len(self._heap) >= self._max_length:
            raise OverloadError(f"{len(self._heap)} requests are waiting already", hint="try again later")
        self._earliest_due_at = min(self._earliest_due_at, waiting.due_at)
        heapq.heappush(self._heap, (-waiting.request.priority, next(self._numbers), waiting))

    def take(self) -> Waiting:
        """The next one; there must be one."""
        return heapq.heappop(self._heap)[2]

    def has_group(self, prompt_group: str | None) -> bool:
        """Whether an answer to the prompt of a group waits; None is no group."""
        if prompt_group is None:
            return False
        return any(entry[2].request.prompt_group == prompt_group for entry in self._heap)

    def remove(self, is_gone: Callable[[Waiting], bool]) -> list[Waiting]:
        """Take out, and return, all that a test names."""
        gone = [entry[2] for entry in self._heap if is_gone(entry[2])]
        if gone:
            self._heap = [entry for entry in self._heap if not is_gone(entry[2])]
            heapq.heapify(self._heap)
        self._earliest_due_at = min((entry[2].due_at for entry in self._heap), default=math.inf)
        return gone
