from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch

from peagle_trt.spec import DrafterConfig
from peagle_trt.train import row_attention
from peagle_trt.train.acceptance import FrozenTables
from peagle_trt.train.batches import sample_plans
from peagle_trt.train.features import TrainingSequence
from peagle_trt.train.gradients import LossSettings, Partition, StepSums, accumulate_gradients
from peagle_trt.train.head import PeagleHead
from peagle_trt.train.partition import (
    assign_segments,
    context_pieces,
    expected_rows,
    paper_segments,
    peak_rows,
    rollout_pieces,
)
from peagle_trt.train.row_attention import MaskTables, make_mask_tables
from peagle_trt.train.sampling import DropSettings, RowPlan, sample_rows, visible_rows
from peagle_trt.train.start import seeded_head

# Sums of a few hundred float32 products in another order; see `allow` for what they are relative to.
ROUNDING = 3e-6

NewSequence = Callable[[int, int, int], TrainingSequence]


def draw_plan(num_context: int, first: int, num_depths: int, retention: float, seed: int) -> RowPlan:
    settings = DropSettings(num_depths=num_depths, retention=retention, floor=0.1)
    return sample_rows(num_context, np.arange(num_context) >= first, settings, np.random.default_rng(seed))


def literal_algorithm(plan: RowPlan, num_segments: int) -> dict[tuple[int, int], int]:
    """Algorithm 1 as it is printed: boundaries, then assignment by position, then by inheritance."""
    length = plan.num_context
    boundaries = [number * length / num_segments for number in range(num_segments + 1)]
    by_depth: dict[int, list[int]] = {}
    for anchor, depth in zip(plan.anchors.tolist(), plan.depths.tolist(), strict=True):
        by_depth.setdefault(depth, []).append(anchor + depth)
    owners: dict[tuple[int, int], int] = {}
    for depth in sorted(by_depth):
        for position in by_depth[depth]:
            owners[depth, position] = (
                max(s for s in range(num_segments) if boundaries[s] <= position)
                if depth < 2
                else owners[depth - 1, position - 1]
            )
    return owners


@pytest.mark.parametrize("num_segments", [1, 2, 3, 7, 16])
@pytest.mark.parametrize(("num_context", "first"), [(16, 0), (61, 20), (128, 3)])
def test_segments_are_those_of_the_printed_algorithm(num_context: int, first: int, num_segments: int) -> None:
    for seed in range(5):
        plan = draw_plan(num_context, first, 6, 0.8, seed)
        expected = literal_algorithm(plan, num_segments)
        found = assign_segments(plan, num_segments)
        places = zip(plan.depths.tolist(), plan.positions.tolist(), strict=True)
        assert found.tolist() == [expected[place] for place in places]


@pytest.mark.parametrize("num_segments", [1, 2, 4, 7])
@pytest.mark.parametrize(("num_depths", "retention"), [(2, 0.8), (8, 0.8), (5, 1.0), (8, 0.4)])
def test_a_query_has_the_same_keys_in_its_segment_as_in_the_whole(
    num_segments: int, num_depths: int, retention: float
) -> None:
    for seed in range(4):
        plan = draw_plan(67, 9, num_depths, retention, seed)
        whole = visible_rows(plan)
        owned = []
        for segment in paper_segments(plan, num_segments):
            inside = visible_rows(plan.take(segment.rows))
            for place, row in zip(np.flatnonzero(segment.is_owned), segment.rows[segment.is_owned], strict=True):
                assert set(segment.rows[inside[place]]) == set(np.flatnonzero(whole[row]))
            owned += segment.rows[segment.is_owned].tolist()
        assert sorted(owned) == list(range(len(plan.depths)))


@pytest.mark.parametrize("max_rows", [7, 20, 1000])
def test_pieces_hold_every_row_once_and_no_broken_rollout(max_rows: int) -> None:
    plan = draw_plan(67, 9, 8, 0.9, 0)
    pieces = [*context_pieces(plan, max_rows), *rollout_pieces(plan, max_rows)]
    rows = [pair for piece in pieces for pair in zip(piece.anchors.tolist(), piece.depths.tolist(), strict=True)]
    assert rows == list(zip(plan.anchors.tolist(), plan.depths.tolist(), strict=True))
    assert max(len(piece.depths) for piece in pieces) <= max_rows
    assert all(piece.depths[0] <= 1 for piece in pieces)


def test_the_last_segment_of_the_paper_holds_the_whole_context_and_a_cached_pass_does_not() -> None:
    plan = draw_plan(512, 0, 8, 0.8, 0)
    assert len(paper_segments(plan, 8)[-1].rows) >= 512
    assert peak_rows(plan, 8, "recomputed") >= 512
    assert peak_rows(plan, 8, "cached") <= -(-len(plan.depths) // 8)
    assert peak_rows(plan, 1, "cached") == peak_rows(plan, 1, "recomputed") == len(plan.depths)


def test_the_expected_rows_are_those_that_are_drawn() -> None:
    # 34,073 of 8,192 positions at K=8 and r=0.8, the paper's case.
    plan = sample_rows(8192, np.ones(8192, bool), DropSettings(num_depths=8, retention=0.8), np.random.default_rng(0))
    assert len(plan.depths) == expected_rows(8192, 8, 0.8, 0.1) == 34073


@pytest.mark.parametrize("length", [1, 5, 40])
def test_windows_of_the_tables_are_the_rows_of_the_mask(length: int) -> None:
    tables: MaskTables = make_mask_tables(64)
    plan = draw_plan(length, 0, 6, 0.9, 3)
    visible = visible_rows(plan)
    context, masked = plan.num_context, torch.from_numpy(plan.depths[plan.num_context :])
    anchors = torch.from_numpy(plan.anchors)
    assert np.array_equal(tables.context_rows(anchors, context).numpy() == 0.0, visible[:, :context])
    if len(masked):
        assert np.array_equal(tables.rollout_rows(masked).numpy() == 0.0, visible[context:, context:])


def gradients(head: PeagleHead, run: Callable[[], StepSums]) -> tuple[StepSums, dict[str, torch.Tensor]]:
    for parameter in head.parameters():
        parameter.grad = None
    sums = run()
    return sums, {name: p.grad.clone() for name, p in head.named_parameters() if p.grad is not None}


def allow(reference: torch.Tensor) -> float:
    """Rounding relative to the largest element: small ones are differences of large sums."""
    return ROUNDING * float(reference.abs().max()) + 1e-9


@pytest.mark.parametrize("method", ["cached", "recomputed"])
@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize(("num_depths", "retention", "prompt_length"), [(2, 0.5, 1), (5, 0.8, 30), (8, 1.0, 2)])
@pytest.mark.parametrize("refused_weight", [1.0, 0.25])
def test_pieces_add_up_to_the_loss_and_the_gradients_of_the_whole(
    config: DrafterConfig,
    tables: FrozenTables,
    new_sequence: NewSequence,
    method: str,
    num_layers: int,
    num_depths: int,
    retention: float,
    prompt_length: int,
    refused_weight: float,
) -> None:
    head = seeded_head(
        msgspec.structs.replace(config, num_layers=num_layers), torch.rand(96) + 0.5, torch.float32, seed=4
    )
    sequences = [new_sequence(3, 70, prompt_length), new_sequence(4, 24, 5)]
    plans = sample_plans(
        sequences, DropSettings(num_depths=num_depths, retention=retention), np.random.default_rng(num_depths)
    )
    # Two opposite tokens between which most rows choose, so that drafts agree and are refused in turn.
    strong_VH = torch.stack([tables.head_DH[7], -tables.head_DH[7]]) * 8.0
    tables = replace(tables, head_DH=torch.cat([strong_VH, tables.head_DH[2:]]))
    settings = LossSettings(depth_decay=0.9, refused_weight=refused_weight)

    def run(partition: Partition) -> Callable[[], StepSums]:
        return lambda: accumulate_gradients(head, tables, sequences, plans, settings=settings, partition=partition)

    whole, expected = gradients(head, run(Partition()))
    assert len(expected) == len(list(head.parameters()))
    assert 0.2 < float(whole.agreements.sum() / whole.counts.sum()) < 0.8
    for num_segments in (2, 3, 5):
        limit = -(-len(plans[0].depths) // num_segments)
        sums, found = gradients(head, run(Partition(method=method, max_rows=limit)))
        assert sums.loss == pytest.approx(whole.loss, rel=1e-5)
        assert torch.equal(sums.counts, whole.counts)
        assert torch.equal(sums.agreements, whole.agreements)
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, atol=allow(gradient), rtol=0.0, msg=name)
        if method == "cached":
            assert peak_rows(plans[0], num_segments, method) <= sums.peak_rows
            assert sums.peak_rows <= limit


def test_blocks_that_compute_their_scores_again_change_nothing(
    config: DrafterConfig, tables: FrozenTables, new_sequence: NewSequence, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = seeded_head(config, torch.rand(96) + 0.5, torch.float32, seed=4)
    sequences = [new_sequence(3, 70, 4)]
    plans = sample_plans(sequences, DropSettings(), np.random.default_rng(0))

    def run() -> StepSums:
        return accumulate_gradients(
            head, tables, sequences, plans, settings=LossSettings(), partition=Partition(max_rows=60)
        )

    _, expected = gradients(head, run)
    monkeypatch.setattr(row_attention, "KEPT_KEYS", 0)
    _, found = gradients(head, run)
    for name, gradient in expected.items():
        assert torch.equal(found[name], gradient), name


def test_in_bfloat16_pieces_add_up_to_its_rounding(
    config: DrafterConfig, tables: FrozenTables, new_sequence: NewSequence
) -> None:
    head = seeded_head(config, torch.rand(96) + 0.5, torch.bfloat16, seed=4)
    tables = replace(tables, head_DH=tables.head_DH.bfloat16())
    sequences = [new_sequence(3, 70, 4)]
    plans = sample_plans(sequences, DropSettings(), np.random.default_rng(0))

    def run(max_rows: int | None) -> Callable[[], StepSums]:
        partition = Partition(max_rows=max_rows)
        return lambda: accumulate_gradients(
            head, tables, sequences, plans, settings=LossSettings(), partition=partition
        )

    whole, expected = gradients(head, run(None))
    sums, found = gradients(head, run(40))
    assert sums.loss == pytest.approx(whole.loss, rel=1e-3)
    for name, gradient in expected.items():
        # Two bfloat16 roundings, 2^-8 each, of sums in another order.
        assert (found[name] - gradient).norm() < 0.02 * gradient.norm(), name
