"""A grammar that holds from a mark in the answer on: what comes before it, as a model's reasoning, may be anything.

Letters: V vocabulary of the target.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peagle_trt.decode.guide import Guide, GuideWalk


class LateGuide:
    """See `peagle_trt.decode.guide.Guide`.

    Args:
        guide: The grammar.
        start_ids: The mark, at least one token. Where all of several but the last one stands, that one must follow:
            nothing can then slip in between the mark and the grammar.
        vocab_size: V.
    """

    def __init__(self, guide: Guide, start_ids: tuple[int, ...], vocab_size: int) -> None:
        self.guide = guide
        self.start_ids = start_ids
        self.vocab_size = vocab_size

    def start(self) -> LateWalk:
        """See `Guide`."""
        return LateWalk(self)


class LateWalk:
    """See `peagle_trt.decode.guide.GuideWalk`. Before the mark an answer may end, as with a call of a function."""

    def __init__(self, guide: LateGuide) -> None:
        self._guide = guide
        self._before: list[int] = []
        self._walk: GuideWalk | None = None
        self._num_taken = 0

    @property
    def may_end(self) -> bool:
        """See `GuideWalk`."""
        return not self._is_led if self._walk is None else self._walk.may_end

    @property
    def is_complete(self) -> bool:
        """See `GuideWalk`."""
        return self._walk is not None and self._walk.is_complete

    def allowed(self) -> NDArray[np.bool_]:
        """See `GuideWalk`."""
        if self._walk is not None:
            return self._walk.allowed()
        if not self._is_led:
            return np.ones(self._guide.vocab_size, np.bool_)
        allowed_V = np.zeros(self._guide.vocab_size, np.bool_)
        allowed_V[self._guide.start_ids[-1]] = True
        return allowed_V

    def take(self, token_id: int) -> None:
        """See `GuideWalk`."""
        if self._walk is not None:
            self._walk.take(token_id)
            self._num_taken += 1
            return
        self._before.append(token_id)
        mark = self._guide.start_ids
        if tuple(self._before[-len(mark) :]) == mark:
            self._walk = self._guide.guide.start()

    def undo(self, count: int) -> None:
        """See `GuideWalk`."""
        num_inside = min(count, self._num_taken)
        if self._walk is not None and num_inside:
            self._walk.undo(num_inside)
            self._num_taken -= num_inside
        if count > num_inside:
            self._walk = None
            del self._before[num_inside - count :]

    @property
    def _is_led(self) -> bool:
        """Whether all of the mark but its last token stands."""
        lead = self._guide.start_ids[:-1]
        return bool(lead) and tuple(self._before[-len(lead) :]) == lead
