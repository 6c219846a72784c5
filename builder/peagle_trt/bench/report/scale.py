"""Axes: from values to places, and the ticks that a reader can read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis.

    Attributes:
        low: Value at its start.
        high: Value at its end; above `low`.
        start: Place of its start, in the drawing's units.
        end: Place of its end.
        ticks: Values that are written at it.
        is_logarithmic: Doublings are equally wide.
    """

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    is_logarithmic: bool = False

    def place(self, value: float) -> float:
        """Where a value lies."""
        low, high, at = (math.log2(each) if self.is_logarithmic else each for each in (self.low, self.high, value))
        return self.start + (at - low) / (high - low) * (self.end - self.start)


def linear_axis(top: float, *, start: float, end: float, num_ticks: int = 5) -> Axis:
    """From 0 to a round number at or above `top`."""
    if not top > 0:
        top = 1.0
    step = _round_step(top / num_ticks)
    count = math.ceil(top / step - 1e-9)
    return Axis(
        low=0.0, high=count * step, start=start, end=end, ticks=tuple(index * step for index in range(count + 1))
    )


def counting_axis(values: Sequence[float], *, start: float, end: float) -> Axis:
    """Whole numbers, a tick each."""
    low, high = min(values), max(values)
    ticks = tuple(float(tick) for tick in range(int(low), int(high) + 1))
    return Axis(low=low - 0.5, high=high + 0.5, start=start, end=end, ticks=ticks)


def doubling_axis(values: Sequence[float], *, start: float, end: float) -> Axis:
    """The values themselves as ticks, with half a doubling of room on both sides."""
    ticks = tuple(sorted(set(values)))
    room = math.sqrt(2)
    return Axis(low=ticks[0] / room, high=ticks[-1] * room, start=start, end=end, ticks=ticks, is_logarithmic=True)


def tick_text(value: float) -> str:
    """A tick without digits that say nothing."""
    if value >= 10_000 and value % 1000 == 0:
        return f"{value / 1000:.0f}k"
    return f"{value:.4g}"


def _round_step(step: float) -> float:
    magnitude = 10.0 ** math.floor(math.log10(step))
    return next(factor * magnitude for factor in _STEPS if factor * magnitude >= step * (1 - 1e-9))
