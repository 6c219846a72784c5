"""Trainings that are killed, that meet bad numbers, a full disk or other settings, and that share their steps."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from peagle_trt.errors import CheckpointError, MachineError, PeagleError, UsageError
from peagle_trt.spec import DrafterConfig
from peagle_trt.train.acceptance import FrozenTables
from peagle_trt.train.features import INDEX_NAME, TrainingSequence, read_index
from peagle_trt.train.gradients import Partition
from peagle_trt.train.optimizer import OptimizerSettings
from peagle_trt.train.run_state import METRICS_NAME, STATE_NAME, check_facts, read_metrics, read_state, write_state
from peagle_trt.train.settings import TrainingSettings
from peagle_trt.train.start import auxiliary_scale, seeded_head
from peagle_trt.train.trainer import Trainer, Watchers

WORKER = Path(__file__).with_name("training_worker.py")
SETTINGS = TrainingSettings(
    optimizer=OptimizerSettings(warmup_steps=2, total_steps=12, matrix_rate=0.02), tokens_per_step=60
)


def new_trainer(
    config: DrafterConfig,
    tables: FrozenTables,
    sequences: list[TrainingSequence],
    folder: Path,
    settings: TrainingSettings = SETTINGS,
) -> Trainer:
    head = seeded_head(config, auxiliary_scale(sequences), torch.float32, seed=4)
    return Trainer(head, tables, sequences, settings, folder, facts=settings.facts())


def launch(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(WORKER), str(folder), *arguments]
    return subprocess.Popen(command, env={**os.environ, **variables}, stderr=subprocess.PIPE)


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(folder) if "loss" in line]


def wait_for_lines(folder: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120.0
    while len(read_metrics(folder)) < count and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.002)


def finish(*processes: subprocess.Popen[bytes]) -> None:
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors.decode()


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken")
    finish(launch(folder))
    assert len(losses(folder)) == 24
    return folder


@pytest.mark.parametrize("killed_after", [1, 7])
def test_a_killed_training_continues_with_the_losses_of_an_unbroken_one(
    tmp_path: Path, unbroken: Path, killed_after: int
) -> None:
    victim = launch(tmp_path)
    wait_for_lines(tmp_path, killed_after, victim)
    victim.kill()
    victim.communicate()
    assert victim.returncode == -signal.SIGKILL
    finish(launch(tmp_path))
    assert losses(tmp_path) == losses(unbroken)
    found, expected = (torch.load(folder / STATE_NAME, weights_only=True)["average"] for folder in (tmp_path, unbroken))
    assert all(torch.equal(value, expected[name]) for name, value in found.items())


def test_two_workers_have_the_losses_and_gradients_of_one(tmp_path: Path, unbroken: Path) -> None:
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20000 + os.getpid() % 20000), "WORLD_SIZE": "2"}
    finish(*[launch(tmp_path, **address, RANK=str(rank)) for rank in range(2)])
    found, expected = (read_metrics(folder) for folder in (tmp_path, unbroken))
    # The first steps start from equal weights but for rounding; later ones inherit the optimizer's amplification of it.
    for line, alone in zip(found[:3], expected[:3], strict=True):
        assert line["loss"] == pytest.approx(alone["loss"], rel=1e-5)
        assert line["gradient_norm"] == pytest.approx(alone["gradient_norm"], rel=1e-5)
        assert line["agreement"] == alone["agreement"]
    np.testing.assert_allclose(losses(tmp_path), losses(unbroken), rtol=2e-3)


def test_partition_leaves_the_loss_curve_as_it_is(
    config: DrafterConfig, tables: FrozenTables, sequences: list[TrainingSequence], tmp_path: Path
) -> None:
    whole = new_trainer(config, tables, sequences, tmp_path / "whole").run()
    cut = replace(SETTINGS, partition=Partition(max_rows=20))
    found = new_trainer(config, tables, sequences, tmp_path / "cut", cut).run()
    np.testing.assert_allclose(found, whole, rtol=1e-4)
    assert max(line["peak_rows"] for line in read_metrics(tmp_path / "cut")) <= 20


def test_a_loss_that_is_no_number_names_the_example_and_leaves_the_last_state(
    config: DrafterConfig, tables: FrozenTables, sequences: list[TrainingSequence], tmp_path: Path
) -> None:
    new_trainer(config, tables, sequences, tmp_path).run(max_steps=1)
    before = (tmp_path / STATE_NAME).read_bytes()
    sequences[7].auxiliary_NA[10] = torch.inf
    trainer = new_trainer(config, tables, sequences, tmp_path)
    trainer.restore()
    with pytest.raises(PeagleError, match="example `7`"):
        trainer.run()
    assert (tmp_path / STATE_NAME).read_bytes() == before
    assert all(value.isfinite().all() for value in trainer.head.parameters())


def test_a_full_disk_keeps_the_last_state(
    config: DrafterConfig, tables: FrozenTables, sequences: list[TrainingSequence], tmp_path: Path
) -> None:
    trainer = new_trainer(config, tables, sequences, tmp_path)
    trainer.run(max_steps=1)
    before = (tmp_path / STATE_NAME).read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
    try:
        with pytest.raises(MachineError):
            trainer.run(max_steps=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert (tmp_path / STATE_NAME).read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [METRICS_NAME, STATE_NAME]


def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    write_state(tmp_path, {"step": 3})
    path = tmp_path / STATE_NAME
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(CheckpointError, match=r"state\.pt` is damaged"):
        read_state(tmp_path)


def test_another_loss_does_not_continue_a_run(
    config: DrafterConfig, tables: FrozenTables, sequences: list[TrainingSequence], tmp_path: Path
) -> None:
    new_trainer(config, tables, sequences, tmp_path).run(max_steps=1)
    other = new_trainer(config, tables, sequences, tmp_path, replace(SETTINGS, objective="tv"))
    with pytest.raises(UsageError, match="objective `'kl'`, this one has `'tv'`"):
        other.restore()


def test_how_a_run_is_cut_and_saved_may_change() -> None:
    changed = replace(SETTINGS, save_seconds=1.0, partition=Partition(max_rows=9))
    check_facts({"facts": {name: repr(value) for name, value in SETTINGS.facts().items()}}, changed.facts())


@pytest.mark.parametrize(("measured", "num_steps"), [([1.5, 1.4, 1.3, 1.2], 6), ([1.5, 1.4, 1.6, 1.5, 1.5], 10)])
def test_a_run_ends_when_acceptance_stops_growing(
    config: DrafterConfig,
    tables: FrozenTables,
    sequences: list[TrainingSequence],
    tmp_path: Path,
    measured: list[float],
    num_steps: int,
) -> None:
    kept: list[int] = []
    rest = iter(measured)
    settings = replace(SETTINGS, evaluation_steps=2, patience=2)
    trainer = new_trainer(config, tables, sequences, tmp_path, settings)
    watchers = Watchers(
        evaluate=lambda _: {"acceptance_length": next(rest)}, on_best=lambda trainer: kept.append(trainer.step)
    )
    assert len(trainer.run(watchers=watchers)) == num_steps
    assert trainer.is_stopped
    assert trainer.best == (max(measured), kept[-1])
    again = new_trainer(config, tables, sequences, tmp_path, settings)
    again.restore()
    assert again.run(watchers=watchers) == []
    assert again.best == trainer.best


def test_a_line_of_the_index_that_a_kill_cut_short_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, new_answer: Callable[[str], object]
) -> None:
    from peagle_trt.train.features import FeatureWriter, read_all_sequences

    for identifier in ("a", "b"):
        writer = FeatureWriter(tmp_path)
        writer.add(new_answer(identifier))  # type: ignore[arg-type]
        writer.flush()
    index = tmp_path / INDEX_NAME
    index.write_bytes(index.read_bytes()[:-30])
    assert [shard.identifiers for shard in read_index(tmp_path)] == [("a",)]
    assert "line 2" in caplog.text
    writer = FeatureWriter(tmp_path)
    writer.add(new_answer("c"))  # type: ignore[arg-type]
    writer.flush()
    assert [shard.identifiers for shard in read_index(tmp_path)] == [("a",), ("c",)]
    assert len(read_all_sequences(tmp_path)) == 2
    assert json.loads(index.read_text().splitlines()[2])["identifiers"] == ["c"]
