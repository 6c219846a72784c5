"""How many tokens a verify step yields, by K: measured shares by position, or a curve through one published length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

P_EAGLE_DECAY = 0.943
"""Factor from one position's conditional acceptance to the next; the mean of three fits for amazon's gpt-oss-20b head.

Source: P-EAGLE blog, gpt-oss-20b, acceptance lengths at K = 3 and 7: HumanEval 3.02 and 3.94, SPEED-Bench code 2.87 and
3.38, MT-Bench 2.87 and 3.70; `python -m scripts.fit_roofline decay` computes it again.
"""
EAGLE3_DECAY = 0.958
"""The same for the blog's EAGLE-3 head: 2.65 and 3.03, 2.24 and 2.59, 2.70 and 3.27."""
_BISECTIONS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceCurve:
    """Acceptance of a head on some prompts.

    Attributes:
        shares: Share of verify steps whose draft at position 0, 1, ... was accepted; never rising.
        source: Where it comes from, as a person would cite it.
    """

    shares: tuple[float, ...]
    source: str

    @property
    def max_draft_tokens(self) -> int:
        """Largest K it can answer for."""
        return len(self.shares)

    def length(self, draft_tokens: int) -> float:
        """Tokens a step yields with K drafts, bonus counted; 1 for K = 0.

        Raises:
            ValueError: K lies beyond the positions known.
        """
        if not 0 <= draft_tokens <= len(self.shares):
            raise ValueError(f"draft_tokens is {draft_tokens}; this curve knows 0..{len(self.shares)}")
        return 1.0 + sum(self.shares[:draft_tokens])


def curve_from_shares(shares: Sequence[float], *, source: str) -> AcceptanceCurve:
    """A curve of measured shares.

    Raises:
        ValueError: There is none, one lies outside 0..1, or they rise.
    """
    if not shares:
        raise ValueError("no share is given")
    for position, share in enumerate(shares):
        # Written so that not-a-number is refused as well.
        if not 0 <= share <= 1:
            raise ValueError(f"the share at position {position} is {share}; expected 0..1")
        if position and share > shares[position - 1]:
            raise ValueError(f"the share at position {position} is {share}, above {shares[position - 1]} before it")
    return AcceptanceCurve(shares=tuple(shares), source=source)


def curve_from_length(
    length: float, *, draft_tokens: int, max_draft_tokens: int, decay: float, source: str
) -> AcceptanceCurve:
    """The curve through one acceptance length, with conditional acceptance c, c d, c d^2, ... for a decay of d.

    Args:
        length: Tokens a step yields at `draft_tokens`, bonus counted; above 1 and at most K + 1.
        draft_tokens: K that it was measured at.
        max_draft_tokens: Positions to continue to.
        decay: d, the factor from one position's conditional acceptance to the next.
        source: Where the length comes from.

    Raises:
        ValueError: No curve passes there.
    """
    if not 1 < length <= draft_tokens + 1:
        raise ValueError(f"acceptance length {length} at K = {draft_tokens}; expected above 1, at most K + 1")
    low, high = 0.0, decay ** (1 - draft_tokens) if decay < 1 else 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if 1 + sum(_shares(middle, decay, draft_tokens)) < length:
            low = middle
        else:
            high = middle
    return AcceptanceCurve(shares=_shares(high, decay, max_draft_tokens), source=source)


def _shares(first: float, decay: float, count: int) -> tuple[float, ...]:
    shares, running = [], 1.0
    for position in range(count):
        running *= min(1.0, first * decay**position)
        shares.append(running)
    return tuple(shares)
