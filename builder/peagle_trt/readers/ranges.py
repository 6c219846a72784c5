"""What every number of a foreign configuration may be: the one table, and the check against it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Values that make sense.

    Attributes:
        low: Smallest.
        high: Largest.
        excludes_low: `low` itself is not allowed.
    """

    low: float
    high: float
    excludes_low: bool = False

    def whole(self, value: object) -> int | None:
        """`value` where it is a whole number of the range, or None."""
        if not isinstance(value, int) or isinstance(value, bool):
            return None
        return value if self._holds(value) else None

    def number(self, value: object) -> float | None:
        """`value` where it is a number of the range, or None."""
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        return float(value) if self._holds(value) else None

    def __str__(self) -> str:
        return f"{'above' if self.excludes_low else 'from'} {self.low:g} to {self.high:.12g}"

    def _holds(self, value: float) -> bool:
        # Python compares whole numbers of any length with floats exactly; nan is in no range.
        return (self.low < value if self.excludes_low else self.low <= value) and value <= self.high


# Upper ends are far above every published model; they keep sizes, loops and float32 from running away.
SIZE = Range(low=1, high=1 << 24)
"""A width, a vocabulary, a number of heads."""
HEAD_DIM = Range(low=2, high=1 << 16)
LAYERS = Range(low=1, high=4096)
LAYER_ID = Range(low=0, high=4096)
DEPTHS = Range(low=1, high=4096)
"""Slots that a head was trained to fill in one pass."""
TOKEN_ID = Range(low=0, high=1 << 24)
POSITIONS = Range(low=1, high=(1 << 31) - 1)
"""A length in tokens; positions are int32 in the graphs."""
EPSILON = Range(low=0, high=1, excludes_low=True)
ROPE_THETA = Range(low=1, high=1e30, excludes_low=True)
"""At 1 every dimension would turn alike, and YaRN would divide by its logarithm."""
ROPE_FACTOR = Range(low=0, high=1e6, excludes_low=True)
"""A stretch, a band's edge or an amplitude of a rotary rule."""
SHARE = Range(low=0, high=1)


def token_ids(vocab_size: int) -> Range:
    """Ids inside a vocabulary."""
    return Range(low=0, high=vocab_size - 1)
