"""Trainings on another device: nothing is left behind on the host, and the numbers are the host's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from peagle_trt import catalog
from peagle_trt.cli.main import run
from peagle_trt.errors import MachineError, UsageError
from peagle_trt.train import run as run_module
from peagle_trt.train.optimizer import OptimizerSettings
from peagle_trt.train.placement import choose_device, usual_compute_dtype
from peagle_trt.train.request import TrainingRequest
from peagle_trt.train.run import train_head
from peagle_trt.train.run_state import STATE_NAME, WORK_NAME, read_metrics
from peagle_trt.train.sampling import DropSettings
from peagle_trt.train.settings import TrainingSettings
from tests.support.elsewhere import ELSEWHERE, FarDevice, FarTensor


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(run_module, "choose_device", lambda name, rank: ELSEWHERE)
    # A subclass's views cannot be made in inference mode.
    monkeypatch.setattr(torch, "inference_mode", torch.no_grad)
    with FarDevice():
        yield


def request_for(folder: Path, **changes: Any) -> TrainingRequest:
    folder.mkdir(exist_ok=True)
    questions = folder / "q.jsonl"
    lines = [{"prompt": f"Tom has {n} apples and buys {n + 1} more. How many?"} for n in range(3, 9)]
    questions.write_text("".join(json.dumps(line) + "\n" for line in lines))
    request = TrainingRequest(
        target_path=catalog.target_path(catalog.find_entry("tiny")),
        questions_path=questions,
        output_path=folder / "head",
        num_layers=1,
        auxiliary_layers=(1, 2, 3),
        max_new_tokens=12,
        draft_tokens=2,
        settings=TrainingSettings(
            drop=DropSettings(num_depths=3),
            optimizer=OptimizerSettings(total_steps=2, warmup_steps=1),
            tokens_per_step=80,
        ),
    )
    return replace(request, **changes)


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(folder / "head" / WORK_NAME / "run") if "loss" in line]


def test_the_device_that_is_not_there_refuses_operands_of_the_host() -> None:
    with FarDevice():
        far = torch.ones(3, device=ELSEWHERE)
        assert isinstance(far, FarTensor)
        assert torch.equal((far * 2).cpu(), torch.full((3,), 2.0))
        with pytest.raises(AssertionError, match="of the host"):
            far + torch.ones(3)
        with pytest.raises((RuntimeError, TypeError, NotImplementedError)):
            far.numpy()


@pytest.mark.parametrize(("method", "features"), [("p-eagle", "cached"), ("p-eagle", "computed"), ("eagle3", "cached")])
def test_a_whole_training_elsewhere_has_the_losses_of_one_here(
    tmp_path: Path, request: pytest.FixtureRequest, method: Any, features: Any
) -> None:
    changes = {"method": method, "features": features}
    here = train_head(request_for(tmp_path / "here", **changes), report=lambda line: None)
    request.getfixturevalue("far")
    there = train_head(request_for(tmp_path / "there", **changes), report=lambda line: None)
    assert losses(tmp_path / "there") == pytest.approx(losses(tmp_path / "here"), rel=1e-4)
    assert there.held_out == here.held_out
    # What is written is the host's, so that a run may continue on another machine.
    state = torch.load(tmp_path / "there/head" / WORK_NAME / "run" / STATE_NAME, weights_only=True)
    assert all(type(value) is torch.Tensor and value.device.type == "cpu" for value in state["head"].values())


# torch takes the fake device for its own `meta`, to which nothing can be copied.
@pytest.mark.filterwarnings("ignore:for .*copying from a non-meta")
def test_a_run_moves_from_one_device_to_another(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    whole = request_for(tmp_path / "whole")
    train_head(whole, report=lambda line: None)
    moved = request_for(tmp_path / "moved")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    quick = replace(moved, settings=replace(moved.settings, save_seconds=0.0, evaluation_steps=1))
    with pytest.raises(KeyboardInterrupt):
        train_head(quick, report=lambda line: None, on_step=lambda step, *_: stop() if step == 2 else None)
    request.getfixturevalue("far")
    train_head(replace(quick, is_resumed=True), report=lambda line: None)
    assert losses(tmp_path / "moved") == pytest.approx(losses(tmp_path / "whole"), rel=1e-4)


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cpu:0", "CUDA", "", "mps"])
def test_names_of_no_device_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"`{name}` is no device"):
        choose_device(name)


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:7"])
def test_a_gpu_that_torch_does_not_see_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MachineError, match=rf"`{name}` was asked for, and torch .* sees 0 GPU\(s\)"):
        choose_device(name)


def test_workers_take_gpus_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [choose_device("auto", rank).index for rank in range(3)] == [0, 1, 0]
    assert choose_device("cuda:1", 0) == torch.device("cuda", 1)
    assert choose_device("cpu") == torch.device("cpu")
    with pytest.raises(MachineError, match=r"sees 2 GPU"):
        choose_device("cuda:2")


def test_products_are_bfloat16_on_a_gpu_alone() -> None:
    assert usual_compute_dtype(torch.device("cuda", 0)) == "bfloat16"
    assert usual_compute_dtype(torch.device("cpu")) == "float32"


def test_the_command_refuses_a_missing_gpu_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (tmp_path / "q.jsonl").write_text('{"prompt": "Why?"}\n')
    words = ["train", "--target", "tiny", "--data", str(tmp_path / "q.jsonl"), "-o", str(tmp_path / "head")]
    assert run(["-q", *words, "--device", "cuda"]) == 3
    assert "`cuda` was asked for" in capsys.readouterr().err
    assert not (tmp_path / "head" / WORK_NAME / "features").exists()
