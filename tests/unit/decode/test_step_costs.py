"""What is believed of passes that were measured."""

from __future__ import annotations

import numpy as np
import pytest

from peagle_trt.decode.acceptance_rates import AcceptanceRates
from peagle_trt.decode.step_costs import CostCurve, StepCosts, magnitude


def test_costs_between_sizes_lie_on_a_line_and_go_on_beyond_them() -> None:
    curve = CostCurve()
    for rows, seconds in ((4, 2.0), (8, 3.0)):
        curve.add(rows, seconds)
    assert curve.predict(np.array([1, 4, 6, 8, 12])).tolist() == [2.0, 2.0, 2.5, 3.0, 4.0]


def test_one_size_alone_is_taken_to_cost_by_the_row() -> None:
    curve = CostCurve()
    curve.add(4, 2.0)
    assert curve.predict(np.array([1, 4, 8])).tolist() == [2.0, 2.0, 4.0]


def test_an_interrupted_pass_does_not_make_larger_ones_dear() -> None:
    curve = CostCurve()
    for rows, seconds in ((1, 1.0), (2, 9.0), (4, 1.5), (4, 1.5)):
        curve.add(rows, seconds)
    assert curve.predict(np.array([1, 2, 4])).tolist() == [1.0, 1.5, 1.5]


def test_a_trend_is_exact_where_costs_lie_on_a_line() -> None:
    curve = CostCurve()
    for rows in (8, 16, 32):
        curve.add(rows, 2.0 + 0.5 * rows)
    assert curve.trend(np.array([8, 12, 40])) == pytest.approx([6.0, 8.0, 22.0])


def test_one_lucky_size_does_not_bend_a_trend() -> None:
    curve = CostCurve()
    for _ in range(9):
        for rows in (8, 12, 16, 20, 24):
            curve.add(rows, 2.0 + 0.5 * rows)
    curve.add(18, 5.0)
    found = curve.trend(np.array([16, 18, 20]))
    assert found[1] == pytest.approx(11.0, rel=0.03)


def test_what_is_far_from_a_range_says_nothing_about_it() -> None:
    curve = CostCurve()
    for rows, seconds in ((1, 1.0), (2, 1.1), (256, 60.0)):
        curve.add(rows, seconds)
    assert curve.trend(np.array([1, 2])) == pytest.approx([1.0, 1.1])


def test_a_trend_never_falls_and_never_reaches_nothing() -> None:
    falling, steep = CostCurve(), CostCurve()
    for rows, seconds in ((2, 3.0), (4, 1.0)):
        falling.add(rows, seconds)
        steep.add(rows, 4.0 - seconds)
    assert falling.trend(np.array([2, 4])).tolist() == [2.0, 2.0]
    assert steep.trend(np.array([1, 2, 4])).tolist() == [0.5, 1.0, 3.0]


def test_a_trend_of_one_size_counts_by_the_row() -> None:
    curve = CostCurve()
    curve.add(4, 2.0)
    assert curve.trend(np.array([4, 8])).tolist() == [2.0, 4.0]


def test_a_machine_that_slows_down_does_not_look_like_dearer_rows() -> None:
    costs = StepCosts()
    curve = costs.target(1)
    for _ in range(20):
        costs.add(curve, 1, 1.0)
        costs.add(curve, 4, 1.5)
    for _ in range(100):
        costs.add(curve, 4, 3.0)
    plain, drafting = curve.predict(np.array([1, 4]))
    assert drafting / plain == pytest.approx(1.5, rel=0.2)


def test_a_curve_forgets_sizes_that_were_measured_longest_ago() -> None:
    curve = CostCurve()
    curve.add(1, 1.0)
    for exponent in range(5, 14):
        for step in range(16, 32):
            curve.add(step << (exponent - 4), 2.0)
    assert curve.expected(1) is None
    assert curve.predict(np.array([1])).tolist() == [2.0]


@pytest.mark.parametrize(("count", "expected"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4)])
def test_magnitudes_double(count: int, expected: int) -> None:
    assert magnitude(count) == expected


def test_acceptance_is_learned_by_position_and_shared() -> None:
    shared = AcceptanceRates(3)
    first = AcceptanceRates(3, shared)
    for _ in range(300):
        first.add(3, 1)
    # The first draft always stays, the second never does, the third was never judged.
    survival = first.survival(3)
    assert survival[0] > 0.95
    assert survival[1] < 0.1
    assert AcceptanceRates(3, shared).survival(2) == pytest.approx(survival[:2], abs=0.05)


def test_survival_never_rises() -> None:
    rates = AcceptanceRates(4)
    for accepted in (0, 4, 2, 4, 1):
        rates.add(4, accepted)
    survival = rates.survival(4)
    assert (np.diff(survival) <= 0).all()
