from __future__ import annotations

import numpy as np
import pytest
import torch

from peagle_trt.spec import DrafterConfig
from peagle_trt.train.acceptance import FrozenTables
from peagle_trt.train.batches import sample_plans, supervised_rows
from peagle_trt.train.features import TrainingSequence
from peagle_trt.train.gradients import LossSettings, Partition, accumulate_gradients
from peagle_trt.train.sampling import DropSettings
from peagle_trt.train.start import seeded_head
from peagle_trt.train.survival import survival_weights


@pytest.mark.parametrize("seed", range(4))
def test_a_row_counts_in_full_if_every_draft_before_it_agrees(seed: int) -> None:
    generator = np.random.default_rng(seed)
    first = {origin: generator.random(30) < 0.6 for origin in (0, 1)}
    rows, expected = [], []
    for origin in (0, 1):
        for anchor in generator.choice(30, size=12, replace=False).tolist():
            is_alive = bool(first[origin][anchor])
            for depth in range(1, int(generator.integers(2, 7))):
                agrees = bool(generator.random() < 0.7)
                rows.append((origin, anchor, depth, agrees))
                expected.append(1.0 if is_alive else 0.2)
                is_alive = is_alive and agrees
        for anchor in range(30):
            rows.append((origin, anchor, 0, bool(first[origin][anchor])))
            expected.append(1.0)
    order = generator.permutation(len(rows))
    origins, anchors, depths, agrees = (torch.tensor([rows[place][part] for place in order]) for part in range(4))
    known = {origin: torch.from_numpy(values) for origin, values in first.items()}
    found = survival_weights(origins, anchors, depths, agrees, known, 0.2)
    torch.testing.assert_close(found, torch.tensor([expected[place] for place in order]))


def test_rows_of_the_context_alone_weigh_one() -> None:
    zeros = torch.zeros(5, dtype=torch.int64)
    found = survival_weights(zeros, torch.arange(5), zeros, torch.zeros(5, dtype=torch.bool), {0: zeros > 0}, 0.0)
    assert found.tolist() == [1.0] * 5


def test_without_refused_rows_the_loss_is_that_of_the_drafts_serving_reads(
    config: DrafterConfig, tables: FrozenTables, sequences: list[TrainingSequence]
) -> None:
    head = seeded_head(config, torch.rand(96) + 0.5, torch.float32, seed=4)
    plans = sample_plans(sequences, DropSettings(num_depths=6, retention=1.0), np.random.default_rng(0))
    losses = {
        weight: accumulate_gradients(
            head, tables, sequences, plans, settings=LossSettings(refused_weight=weight), partition=Partition()
        ).loss
        for weight in (0.0, 0.5, 1.0)
    }
    assert losses[0.0] < losses[0.5] < losses[1.0]
    assert losses[0.5] == pytest.approx((losses[0.0] + losses[1.0]) / 2, rel=1e-5)
    assert all(supervised_rows(sequence, plan).any() for sequence, plan in zip(sequences, plans, strict=True))
