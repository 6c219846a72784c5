"""Spread: percentiles, and how sure a median of paired ratios is."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

NUM_RESAMPLES = 2000
BOOTSTRAP_SEED = 0
"""Fixed, so that the same cells always give the same interval."""
MIN_PAIRS = 5
"""Fewer ratios cannot carry a 95 % interval: of four, the largest is the median's bound in every eighth case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Of a set of durations, in milliseconds.

    Attributes:
        p50: Median.
        p90: Ninetieth percentile.
        p99: Ninety-ninth percentile.
    """

    p50: float
    p90: float
    p99: float


def percentiles_ms(seconds: Sequence[float]) -> Percentiles | None:
    """Percentiles by the nearest rank, so that each is a value that was measured; None of nothing."""
    if not seconds:
        return None
    ordered = sorted(seconds)

    def at(share: float) -> float:
        return 1e3 * ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return Percentiles(p50=at(0.5), p90=at(0.9), p99=at(0.99))


def quartiles(values: Sequence[float]) -> tuple[float, float] | None:
    """First and third quartile; None of fewer than three values, of which they would reach beyond what was measured."""
    if len(values) < 3:
        return None
    low, _, high = statistics.quantiles(values, n=4)
    return low, high


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of the median, by the percentile bootstrap; None of fewer than `MIN_PAIRS` values.

    Args:
        values: Ratios within a round, so that what slows a whole round down is in none of them.

    Source: Efron, "Bootstrap methods: another look at the jackknife" (1979): draw as many values with replacement,
        take the median, repeat, and cut 2.5 % off both ends.
    """
    if len(values) < MIN_PAIRS:
        return None
    source = random.Random(BOOTSTRAP_SEED)
    medians = sorted(statistics.median(source.choices(values, k=len(values))) for _ in range(NUM_RESAMPLES))
    cut = round(0.025 * NUM_RESAMPLES)
    return medians[cut], medians[-cut - 1]
