"""Prompt lookup beside a head: drafts that are copied from the text itself, where it has been there before.

A slot of a parallel head does not know the drafts before it, so its later drafts often fit no single continuation; and
answers repeat what stands in their prompt and in themselves. Where the last tokens, the drafts before a slot included,
occur earlier in the text, what followed there is a second proposal for that slot. Which of the two is verified is
learned: wherever they differ and the target's token becomes known, both are judged. An answer stays what it is, for a
draft that was not drawn is a guess, whoever made it.

Source: prompt lookup decoding (A. Saxena, 2023) and LLMA (arXiv 2304.04487), which copy whole runs instead of drafting;
that slots and matches are judged apart is of this project.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SHORTEST_MATCH = 2
LONGEST_MATCH = 8
"""Tokens that a place in the text must share with the text's end, and how many more are looked at."""
MAX_PLACES = 8
"""Latest occurrences of two tokens that are compared."""
NUM_DEPTHS = 4
"""Slots that are told apart; the last stands for all behind it."""
MATCH_BOUNDS = (3, 4, 6)
"""Lengths from which on a match counts as one of the next kind."""

SHARED_MEMORY = 0.998
OWN_MEMORY = 0.97
"""What is left of a judgement after the next one of its kind, over all requests and in one."""
SHARED_WEIGHT = 4.0
"""Judgements that the experience of all requests counts for beside a request's own."""
PRIOR_WEIGHT = 2.0
"""Judgements that the first guess counts for."""
FIRST_GUESS = (0.1, 0.4)
"""Chance that the head's draft is right where both differ, and the copy's, before anything was seen. A first draft is
the head's: it saw everything before it."""
FIRST_GUESS_AT_ONCE = (0.5, 0.3)


@dataclass(slots=True)
class _Place:
    """Where the text has been before.

    Attributes:
        position: Of the token that followed.
        length: Tokens before it that are those at the end, at most `LONGEST_MATCH`.
    """

    position: int
    length: int


class SeenText:
    """Finds where the end of a text occurs earlier in it. Grows with the text, by some hundred bytes a token."""

    def __init__(self) -> None:
        self._latest: dict[int, int] = {}
        # The place before each where the same two tokens stood; 0, which is none, where there is no other.
        self._earlier = array("i", [0] * SHORTEST_MATCH)

    def read(self, token_ids: Sequence[int]) -> None:
        """Take in what the text has grown by.

        Args:
            token_ids: The whole text; what was read before has not changed.
        """
        # A place is known once a token has followed it.
        for position in range(len(self._earlier), len(token_ids)):
            pair = _pair(token_ids[position - 2], token_ids[position - 1])
            self._earlier.append(self._latest.get(pair, 0))
            self._latest[pair] = position

    def find(self, token_ids: Sequence[int]) -> _Place | None:
        """The place that shares most with the end of a text that begins with the one read; the latest of equals."""
        best: _Place | None = None
        if len(token_ids) < SHORTEST_MATCH:
            return None
        position = self._latest.get(_pair(token_ids[-2], token_ids[-1]), 0)
        for _ in range(MAX_PLACES):
            if position == 0:
                break
            length = SHORTEST_MATCH
            longest = min(LONGEST_MATCH, position)
            while length < longest and token_ids[position - length - 1] == token_ids[-length - 1]:
                length += 1
            if best is None or length > best.length:
                best = _Place(position=position, length=length)
            if length == LONGEST_MATCH:
                break
            position = self._earlier[position]
        return best


class LookupExperience:
    """How often the head's draft was right where a copy differed from it, and how often the copy; by slot and match.

    Args:
        shared: Experience of all requests, which a new request starts from; None for that experience itself.
    """

    def __init__(self, shared: LookupExperience | None = None) -> None:
        self._shared = shared
        self._memory = SHARED_MEMORY if shared is None else OWN_MEMORY
        num_kinds = NUM_DEPTHS * (len(MATCH_BOUNDS) + 1)
        self._judged = [0.0] * num_kinds
        self._right = [[0.0] * num_kinds, [0.0] * num_kinds]

    def chances(self, kind: int) -> tuple[float, float]:
        """Chance that the head's draft is right, and that the copy is, where they differ."""
        if self._shared is not None:
            prior, weight = self._shared.chances(kind), SHARED_WEIGHT
        else:
            prior, weight = (FIRST_GUESS_AT_ONCE if kind % NUM_DEPTHS == 0 else FIRST_GUESS), PRIOR_WEIGHT
        total = self._judged[kind] + weight
        head, copy = ((right[kind] + weight * each) / total for right, each in zip(self._right, prior, strict=True))
        return head, copy

    def add(self, kind: int, *, is_head_right: bool, is_copy_right: bool) -> None:
        """Take a judgement in."""
        self._judged[kind] = self._memory * self._judged[kind] + 1.0
        for right, is_right in zip(self._right, (is_head_right, is_copy_right), strict=True):
            right[kind] = self._memory * right[kind] + is_right
        if self._shared is not None:
            self._shared.add(kind, is_head_right=is_head_right, is_copy_right=is_copy_right)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rivals:
    """Two proposals for one slot."""

    slot: int
    kind: int
    head: int
    copy: int


class DraftLookup:
    """Chooses between the head's drafts and copies, for one request.

    Args:
        shared: Experience of all requests.
    """

    def __init__(self, shared: LookupExperience) -> None:
        self._text = SeenText()
        self._token_ids: list[int] = []
        self._experience = LookupExperience(shared)
        self._rivals: list[_Rivals] = []

    def mix(
        self, token_ids: Sequence[int], drafts: Sequence[int], confidence_K: NDArray[np.float64] | None
    ) -> tuple[tuple[int, ...], NDArray[np.float64] | None]:
        """The drafts to verify.

        Args:
            token_ids: Prompt and answer so far; what an earlier call was given has not changed.
            drafts: The head's, K of them.
            confidence_K: How sure the head is of each, or None.

        Returns:
            K drafts, and how sure one may be of each, where that was given.
        """
        self._rivals = []
        # A list of its own, so that a step costs what it adds and not what the prompt was.
        text = self._token_ids
        text += token_ids[len(text) :]
        self._text.read(text)
        sure_K = None if confidence_K is None else confidence_K.copy()
        place = self._text.find(text)
        for slot, head in enumerate(drafts):
            chosen = head
            # The text may go on into its own drafts: so does a short loop.
            copy = text[place.position] if place is not None else head
            if place is not None and copy != head:
                kind = _kind(slot, place.length)
                self._rivals.append(_Rivals(slot=slot, kind=kind, head=head, copy=copy))
                head_chance, copy_chance = self._experience.chances(kind)
                if copy_chance > head_chance:
                    chosen = copy
                    if sure_K is not None:
                        sure_K[slot] = copy_chance
            text.append(chosen)
            if place is not None and chosen == copy:
                place = _Place(position=place.position + 1, length=min(place.length + 1, LONGEST_MATCH))
            else:
                place = self._text.find(text)
        mixed = tuple(text[len(token_ids) :])
        del text[len(token_ids) :]
        return mixed, sure_K

    def judge(self, tokens: Sequence[int], num_accepted: int) -> int:
        """Learn from what the target said in the slots of the last drafts.

        Args:
            tokens: Its tokens: the accepted drafts and one more.
            num_accepted: Drafts among them.

        Returns:
            Accepted drafts that are copies and not the head's.
        """
        num_copied = 0
        for rivals in self._rivals:
            if rivals.slot < len(tokens):
                truth = tokens[rivals.slot]
                is_copy_right = rivals.copy == truth
                self._experience.add(rivals.kind, is_head_right=rivals.head == truth, is_copy_right=is_copy_right)
                num_copied += is_copy_right and rivals.slot < num_accepted
        self._rivals = []
        return num_copied


def _pair(first: int, second: int) -> int:
    # An id of numpy's would be shifted out of its 32 bits.
    return int(first) << 32 | int(second)


def _kind(slot: int, length: int) -> int:
    match = sum(length >= bound for bound in MATCH_BOUNDS)
    return match * NUM_DEPTHS + min(slot, NUM_DEPTHS - 1)
