"""Experts that a pass touches, against routing that is really drawn."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from peagle_trt.roofline import expected_experts

TRIALS = 4000


def drawn_experts(num_experts: int, experts_per_token: int, num_rows: int) -> float:
    """Mean number of different experts over trials in which every row draws its own."""
    random = np.random.default_rng(7)
    order = random.random((TRIALS, num_rows, num_experts)).argpartition(experts_per_token - 1, axis=-1)
    touched = np.zeros((TRIALS, num_experts), bool)
    np.put_along_axis(touched, order[..., :experts_per_token].reshape(TRIALS, -1), True, axis=1)
    return float(touched.sum(axis=1).mean())


@pytest.mark.parametrize(
    ("num_experts", "experts_per_token", "num_rows"), [(32, 4, 1), (32, 4, 8), (32, 4, 33), (128, 8, 12), (5, 3, 2)]
)
def test_uniform_routing_touches_what_is_drawn(num_experts: int, experts_per_token: int, num_rows: int) -> None:
    # Four standard errors: the count's standard deviation is below the square root of the number of experts.
    tolerance = 4 * math.sqrt(num_experts / TRIALS)
    expected = expected_experts(num_experts, experts_per_token, num_rows)
    assert drawn_experts(num_experts, experts_per_token, num_rows) == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize("num_rows", [1, 8, 40])
def test_favourites_are_the_mean_over_drawn_popularities(num_rows: int) -> None:
    spread, share = 2.0, 4 / 32
    popularity = np.random.default_rng(3).beta(spread * share, spread * (1 - share), 400_000)
    drawn = 32 * (1 - (1 - popularity) ** num_rows).mean()
    assert expected_experts(32, 4, num_rows, spread=spread) == pytest.approx(drawn, rel=0.01)


def test_favourites_vanish_with_the_spread() -> None:
    assert expected_experts(128, 4, 16, spread=1e9) == pytest.approx(expected_experts(128, 4, 16), rel=1e-5)
    assert expected_experts(128, 4, 16, spread=1.0) < expected_experts(128, 4, 16, spread=10.0)


def test_one_row_touches_its_own_experts_and_none_touches_none() -> None:
    assert expected_experts(128, 8, 1) == pytest.approx(8)
    assert expected_experts(128, 8, 1, spread=0.5) == pytest.approx(8)
    assert expected_experts(128, 8, 0) == 0
    assert expected_experts(8, 8, 0) == 0


def test_every_expert_is_touched_where_a_row_takes_all() -> None:
    assert expected_experts(8, 8, 3) == 8


def test_more_rows_touch_more_experts_and_never_more_than_there_are() -> None:
    counts = [expected_experts(32, 4, rows) for rows in range(200)]
    assert all(later > earlier for earlier, later in itertools.pairwise(counts[:60]))
    assert max(counts) <= 32


@pytest.mark.parametrize(
    ("num_experts", "experts_per_token", "num_rows", "spread"),
    [(8, 0, 1, 1.0), (8, 9, 1, 1.0), (8, 2, -1, 1.0), (8, 2, 1, 0.0)],
)
def test_numbers_out_of_range_are_refused(
    num_experts: int, experts_per_token: int, num_rows: int, spread: float
) -> None:
    with pytest.raises(ValueError, match="expected"):
        expected_experts(num_experts, experts_per_token, num_rows, spread=spread)
