from __future__ import annotations

import mmap
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from peagle_trt.errors import UsageError
from peagle_trt.spec import DrafterConfig
from peagle_trt.train.acceptance import FrozenTables
from peagle_trt.train.curves import draw_curves
from peagle_trt.train.memory import (
    choose_segments,
    estimate_bytes,
    measure_peak,
    measure_row_bytes,
    segment_costs,
)
from peagle_trt.train.run_state import write_metrics
from peagle_trt.train.sampling import DropSettings, sample_rows
from peagle_trt.train.start import seeded_head


@pytest.mark.parametrize("num_layers", [1, 3])
def test_a_row_keeps_at_least_what_the_architecture_needs(
    config: DrafterConfig, tables: FrozenTables, num_layers: int
) -> None:
    config = msgspec.structs.replace(config, num_layers=num_layers, max_positions=4096)
    head = seeded_head(config, torch.ones(96), torch.float32, seed=0)
    # Inputs of fc and of the seven projections of each layer, and the gated product's two factors: float32.
    hidden, heads, wide = config.hidden_size, config.num_attention_heads * config.head_dim, config.intermediate_size
    least = 4 * (3 * hidden + num_layers * (hidden + heads + hidden + 3 * wide))
    assert least < measure_row_bytes(head, tables) < 6 * least


def test_more_segments_never_take_more_memory_and_the_budget_takes_the_fewest(
    config: DrafterConfig, tables: FrozenTables
) -> None:
    head = seeded_head(msgspec.structs.replace(config, max_positions=4096), torch.ones(96), torch.float32, seed=0)
    plan = sample_rows(2048, np.ones(2048, bool), DropSettings(num_depths=8, retention=0.8), np.random.default_rng(0))
    row_bytes = measure_row_bytes(head, tables)
    costs = segment_costs(head, tables, plan, row_bytes)
    assert [cost.num_segments for cost in costs] == [1, 2, 4, 8, 16, 32]
    estimates = [cost.num_bytes for cost in costs]
    assert estimates == sorted(estimates, reverse=True)
    assert choose_segments(costs, estimates[3]) == 8
    assert choose_segments(costs, estimates[0]) == 1
    assert estimates[0] == estimate_bytes(head, tables, plan, len(plan.depths), row_bytes)
    with pytest.raises(UsageError, match="even in 32 segments"):
        choose_segments(costs, estimates[-1] - 1)


def test_the_peak_of_a_run_is_seen_though_the_memory_is_free_again() -> None:
    # Straight from the system: an allocator may hand out what this process has held before.
    peak = measure_peak(lambda: mmap.mmap(-1, 64 << 20).write(bytes(64 << 20)), torch.device("cpu"))
    assert peak is not None
    assert 60 << 20 < peak[1] - peak[0] < 160 << 20


def test_the_picture_shows_losses_depths_and_evaluations(tmp_path: Path) -> None:
    for step in range(3):
        write_metrics(tmp_path, {"step": step, "loss": 3.0 - step, "agreement": [0.5, 0.1 * step, None]})
    write_metrics(tmp_path, {"step": 3, "acceptance_length": 1.5})
    draw_curves(tmp_path, tmp_path / "curves.svg")
    picture = (tmp_path / "curves.svg").read_text()
    assert [word in picture for word in ("loss", "depth 0", "depth 1", "acceptance length")] == [True] * 4
    assert "nan" not in picture
    assert picture.count("<polyline") == 5


def test_there_is_no_picture_before_the_first_step(tmp_path: Path) -> None:
    draw_curves(tmp_path, tmp_path / "curves.svg")
    assert not (tmp_path / "curves.svg").exists()
