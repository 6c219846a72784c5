from __future__ import annotations

import numpy as np
import pytest

from peagle_trt.train.sampling import DropSettings, RowPlan, full_rows, sample_rows, visible_rows


def rows_of(plan: RowPlan) -> set[tuple[int, int]]:
    return set(zip(plan.anchors.tolist(), plan.depths.tolist(), strict=True))


@pytest.mark.parametrize(("num_context", "first"), [(1, 0), (2, 0), (7, 3), (64, 0), (129, 40)])
def test_every_mask_slot_rests_on_the_one_before_it(num_context: int, first: int) -> None:
    supervised = np.arange(num_context) >= first
    for seed in range(50):
        plan = sample_rows(num_context, supervised, DropSettings(num_depths=8), np.random.default_rng(seed))
        rows = rows_of(plan)
        assert all((anchor, depth - 1) in rows for anchor, depth in rows if depth > 0)


@pytest.mark.parametrize("first", [0, 1, 17])
def test_anchors_are_supervised_and_never_negative(first: int) -> None:
    supervised = np.arange(60) >= first
    for seed in range(200):
        plan = sample_rows(60, supervised, DropSettings(retention=0.9), np.random.default_rng(seed))
        assert plan.anchors[plan.depths > 0].min() >= first
        assert plan.positions.max() < 60


def test_each_row_is_drawn_once(generator: np.random.Generator) -> None:
    plan = sample_rows(100, np.ones(100, dtype=bool), DropSettings(), generator)
    assert len(rows_of(plan)) == len(plan.depths)


def test_depths_thin_out_at_the_retention_rate(generator: np.random.Generator) -> None:
    settings = DropSettings(num_depths=5, retention=0.5, floor=0.0)
    plan = sample_rows(4096, np.ones(4096, dtype=bool), settings, generator)
    counts = np.bincount(plan.depths)
    # int(max(0, n - d) * r**d), from the algorithm's statement.
    assert counts.tolist() == [4096, 2047, 1023, 511, 255]


def test_a_gap_in_the_supervision_ends_a_rollout(generator: np.random.Generator) -> None:
    supervised = np.ones(40, dtype=bool)
    supervised[20] = False
    plan = sample_rows(40, supervised, DropSettings(retention=1.0, floor=1.0), generator)
    crossing = (plan.anchors < 20) & (plan.positions >= 20)
    assert not crossing.any()


def test_visible_rows_follow_the_rule_row_by_row(generator: np.random.Generator) -> None:
    plan = sample_rows(19, np.arange(19) >= 4, DropSettings(num_depths=4), generator)
    visible = visible_rows(plan)
    elements = list(zip(plan.anchors.tolist(), plan.depths.tolist(), strict=True))
    for query, (query_anchor, query_depth) in enumerate(elements):
        for key, (key_anchor, key_depth) in enumerate(elements):
            is_context = key_depth == 0 and key_anchor <= query_anchor
            is_own = key_anchor == query_anchor and key_depth <= query_depth
            assert visible[query, key] == (is_context or is_own)


def test_full_rows_hold_every_depth_of_every_anchor() -> None:
    plan = full_rows(6, np.array([2, 5]), 3)
    assert plan.anchors.tolist() == [0, 1, 2, 3, 4, 5, 2, 2, 5, 5]
    assert plan.depths.tolist() == [0, 0, 0, 0, 0, 0, 1, 2, 1, 2]
