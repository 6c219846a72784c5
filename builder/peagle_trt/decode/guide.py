"""Answers that follow a grammar: what the loop asks of one, and how it masks drafts.

Letters: V vocabulary of the target, D draft vocabulary, M candidates of a slot.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from peagle_trt.errors import RequestError


class GuideWalk(Protocol):
    """Where one answer stands in its grammar.

    All of it raises RequestError where the grammar turns out to need more than its limits allow, and does so again
    whenever it is asked after that.
    """

    @property
    def may_end(self) -> bool:
        """Whether the answer so far is whole."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether it is whole and nothing can follow."""
        ...

    def allowed(self) -> NDArray[np.bool_]:
        """[V] tokens that may come next; tokens that only end an answer are not among them."""
        ...

    def take(self, token_id: int) -> None:
        """Go on with an allowed token."""
        ...

    def undo(self, count: int) -> None:
        """Take the last tokens back."""
        ...


class Guide(Protocol):
    """A grammar, ready for any number of answers."""

    def start(self) -> GuideWalk:
        """The way of one answer, at its start."""
        ...


class GuideBars:
    """One answer's grammar beside its end tokens: what may come next, for the target and for drafts.

    Args:
        guide: The grammar.
        end_ids: End the answer, where it may end.
    """

    def __init__(self, guide: Guide, end_ids: Sequence[int]) -> None:
        self._walk = guide.start()
        self._end_ids = list(end_ids)
        self._num_ahead = 0
        self._is_blocked = False

    @property
    def is_complete(self) -> bool:
        """Whether nothing but the end can come: the answer ends here."""
        return self._walk.is_complete

    def allowed(self) -> NDArray[np.bool_]:
        """[V] what may come next, end tokens included where the answer may end."""
        allowed_V = self._walk.allowed()
        if self._walk.may_end:
            allowed_V[self._end_ids] = True
        return allowed_V

    def append(self, token_id: int) -> None:
        """Take a token of the answer."""
        if token_id not in self._end_ids:
            self._walk.take(token_id)

    def allowed_draft(self) -> NDArray[np.bool_] | None:
        """[V] what the next draft may be; None where no draft makes sense any more."""
        with self._blocked_by_faults():
            if not self._is_blocked and not self._walk.is_complete:
                return self.allowed()
        return None

    def append_draft(self, token_id: int | None) -> None:
        """Go on with a draft; None where the drafter had nothing to say, so that no draft can follow."""
        if token_id is None or token_id in self._end_ids:
            self._is_blocked = True
            return
        with self._blocked_by_faults():
            self._walk.take(token_id)
            self._num_ahead += 1

    def undo_drafts(self) -> None:
        """Return from the drafts to the answer: the target has not seen them yet."""
        with self._blocked_by_faults():
            if self._num_ahead:
                self._walk.undo(self._num_ahead)
        self._num_ahead, self._is_blocked = 0, False

    @contextlib.contextmanager
    def _blocked_by_faults(self) -> Iterator[None]:
        # A grammar that can be followed no further must not stop a draft pass of other answers; its own answer hears
        # of it at the next verify step, because a walk never recovers.
        try:
            yield
        except RequestError:
            self._is_blocked = True


def only_token(allowed_V: NDArray[np.bool_]) -> int | None:
    """The token that a grammar leaves no choice about, or None."""
    first = int(allowed_V.argmax())
    return first if allowed_V[first] and int(allowed_V.sum()) == 1 else None
