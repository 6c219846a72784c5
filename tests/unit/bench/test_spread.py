"""Percentiles and intervals on numbers whose answer is known."""

from __future__ import annotations

import random
import statistics

import pytest

from peagle_trt.bench.spread import Percentiles, median_interval, percentiles_ms, quartiles


def test_percentiles_are_values_that_were_measured() -> None:
    # Of 1..100 the nearest rank of p is p itself.
    assert percentiles_ms([value / 1000 for value in range(100, 0, -1)]) == Percentiles(p50=50.0, p90=90.0, p99=99.0)
    assert percentiles_ms([0.25]) == Percentiles(p50=250.0, p90=250.0, p99=250.0)
    assert percentiles_ms([]) is None


def test_equal_ratios_have_no_spread() -> None:
    assert median_interval([2.0] * 5) == (2.0, 2.0)


def test_few_ratios_have_no_interval() -> None:
    assert median_interval([1.0, 2.0, 3.0, 4.0]) is None
    assert quartiles([1.0]) is None


def test_an_interval_covers_the_median_as_often_as_it_says() -> None:
    source = random.Random(3)
    hits = 0
    for _ in range(60):
        interval = median_interval([source.gauss(1.5, 0.2) for _ in range(15)])
        assert interval is not None
        hits += interval[0] <= 1.5 <= interval[1]
    # 95 % of 60 is 57; a binomial of 60 at 0.9 lies below 48 in one case of a hundred.
    assert hits >= 48


def test_the_same_cells_give_the_same_interval() -> None:
    values = [1.0, 1.2, 1.1, 1.6, 0.9, 1.3]
    assert median_interval(values) == median_interval(list(values))
    low, high = median_interval(values) or (0.0, 0.0)
    assert low <= statistics.median(values) <= high


@pytest.mark.parametrize("count", [5, 6, 25])
def test_an_interval_lies_within_the_values(count: int) -> None:
    values = [1.0 + index / count for index in range(count)]
    low, high = median_interval(values) or (0.0, 0.0)
    assert values[0] <= low < high <= values[-1]


def test_two_ratios_have_no_middle_half() -> None:
    assert quartiles([1.0, 6.0]) is None
    assert quartiles([1.0, 2.0, 6.0]) == (1.0, 6.0)
