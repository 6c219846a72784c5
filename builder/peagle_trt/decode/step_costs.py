"""What passes of target and drafter cost here and now, learned from the passes themselves.

Only ratios of costs are ever used, so samples are kept relative to how slow the machine is at the moment: when all of
it slows down, what was measured before stays comparable.
"""

from __future__ import annotations

import statistics
from collections import deque

import numpy as np
from numpy.typing import NDArray

NUM_SAMPLES = 9
"""Samples of one size; their median counts, so that a pass the machine interrupted does not."""
MAX_SIZES = 64
"""Sizes a curve remembers; the one measured longest ago makes room."""
NEAR_RANGE = (0.75, 1.25)
"""Sizes that tell about a range of rows: from this much of its smallest to this much of its largest."""
LEAST_SHARE = 0.5
"""The least that a pass is believed to take, of the fastest near it."""
SLOWNESS_SHARE = 0.25
"""Weight of the newest pass in the machine's slowness."""
LARGEST_SURPRISE = 1.6
"""A pass counts as at most this many times slower or faster than expected."""
MIN_SAMPLES = 3
"""Samples of a size before its median says anything about the machine: the first pass may load what it runs."""


class CostCurve:
    """Relative seconds of a pass by its rows: medians of what was measured, straight lines between them."""

    def __init__(self) -> None:
        self._samples: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nothing was measured."""
        return not self._medians

    @property
    def num_sizes(self) -> int:
        """Sizes that were measured."""
        return len(self._medians)

    def expected(self, rows: int) -> float | None:
        """Median of just this size, or None before there are enough samples."""
        size = _size(rows)
        return self._medians[size] if len(self._samples.get(size, ())) >= MIN_SAMPLES else None

    def add(self, rows: int, seconds: float) -> None:
        """Take a sample in."""
        size = _size(rows)
        samples = self._samples.pop(size, None) or deque[float](maxlen=NUM_SAMPLES)
        samples.append(seconds)
        # Dictionaries keep the order of insertion: the first one was measured longest ago.
        self._samples[size] = samples
        self._medians[size] = statistics.median(samples)
        if len(self._samples) > MAX_SIZES:
            oldest = next(iter(self._samples))
            del self._samples[oldest], self._medians[oldest]

    def predict(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Seconds of passes of any size; more rows never cost less.

        Args:
            rows: [N], each above 0. The curve is not empty.
        """
        sizes = np.array(sorted(self._medians))
        # A pass that the machine interrupted looks dear, none looks cheap: the larger size is the one to believe.
        seconds = np.minimum.accumulate([self._medians[size] for size in sizes[::-1].tolist()])[::-1]
        if len(sizes) == 1:
            # Nothing says what a row costs: assume the dearest case, that all of the time is due to rows.
            return np.asarray(seconds[0] * np.maximum(rows / sizes[0], 1.0))
        slope = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])
        beyond = np.maximum(rows - sizes[-1], 0) * slope
        return np.asarray(np.interp(rows, sizes, seconds) + beyond)

    def least(self, rows: int) -> float:
        """Seconds of a pass that may be smaller than all that were measured: what is left of the smallest one's time
        when rows are taken from it at the average price. There are two sizes at least.
        """
        smallest, largest = min(self._medians), max(self._medians)
        seconds = float(self.predict(np.array([rows]))[0])
        price = max(0.0, (self._medians[largest] - self._medians[smallest]) / (largest - smallest))
        return max(seconds - price * max(0, smallest - rows), 0.0)

    def trend(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Seconds of passes of a range of sizes, on the one line that comes closest to what was measured near them.

        For choosing among many sizes: whoever picks the best of many medians picks the luckiest. On a simulated machine
        whose passes scatter by 4 %, speculation of eight answers gained 1.06 by medians, 1.14 by the line.

        Args:
            rows: [N], each above 0, rising. The curve is not empty.
        """
        known = np.array(list(self._medians))
        least, most = NEAR_RANGE
        near = known[(known >= least * rows[0]) & (known <= most * rows[-1])]
        sizes = near if len(near) > 1 else known
        if len(sizes) == 1:
            return self.predict(rows)
        medians = np.array([self._medians[size] for size in sizes.tolist()])
        weights = np.array([len(self._samples[size]) for size in sizes.tolist()], np.float64)
        middle, level = np.average(sizes, weights=weights), np.average(medians, weights=weights)
        spread = weights * (sizes - middle)
        slope = max(0.0, float((spread * (medians - level)).sum() / (spread * (sizes - middle)).sum()))
        # Far from what was measured a line may fall below what any pass takes.
        return np.asarray(np.maximum(level + slope * (rows - middle), LEAST_SHARE * medians.min()))


class StepCosts:
    """Curves of both models, one for each magnitude of the number of sequences."""

    def __init__(self) -> None:
        self._target: dict[int, CostCurve] = {}
        self._drafter: dict[int, CostCurve] = {}
        self._slowness = 1.0

    def target(self, num_sequences: int) -> CostCurve:
        """Curve of target passes over so many running answers, verification of their drafts included."""
        return _of(self._target, num_sequences)

    def drafter(self, num_sequences: int) -> CostCurve:
        """Curve of drafter passes over so many sequences."""
        return _of(self._drafter, num_sequences)

    def known_drafters(self) -> list[int]:
        """Magnitudes whose drafter passes were measured."""
        return [each for each, curve in self._drafter.items() if not curve.is_empty]

    def add(self, curve: CostCurve, rows: int, seconds: float) -> None:
        """Take in what a pass cost."""
        expected = curve.expected(rows)
        if expected:
            surprise = seconds / (expected * self._slowness)
            surprise = min(max(surprise, 1 / LARGEST_SURPRISE), LARGEST_SURPRISE)
            self._slowness *= 1.0 + SLOWNESS_SHARE * (surprise - 1.0)
        curve.add(rows, seconds / self._slowness)


def magnitude(num_sequences: int) -> int:
    """0 for one sequence, 1 for two, 2 for three and four, 3 for up to eight, and so on."""
    return (num_sequences - 1).bit_length()


def _of(curves: dict[int, CostCurve], num_sequences: int) -> CostCurve:
    return curves.setdefault(magnitude(num_sequences), CostCurve())


def _size(rows: int) -> int:
    """Rows to three significant binary digits above 32, so that sizes repeat."""
    shift = max(0, rows.bit_length() - 5)
    return max(1, (rows >> shift) << shift)
