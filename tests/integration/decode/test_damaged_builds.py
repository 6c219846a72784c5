"""A build that was damaged after it was finished is refused when it is opened, with the file's name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from peagle_trt.decode.session import open_build
from peagle_trt.engine.ort_graph import usable_threads
from peagle_trt.errors import UsageError


@pytest.fixture
def build(tiny_build: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_build, tmp_path / "build"))


@pytest.mark.parametrize("name", ["engine/drafter.b2.onnx", "engine/target.safetensors", "tokenizer/tokenizer.json"])
def test_a_missing_file_is_named(build: Path, name: str) -> None:
    (build / name).unlink()
    with pytest.raises(UsageError, match=name):
        open_build(build)


def test_a_cut_file_is_named(build: Path) -> None:
    path = build / "engine" / "drafter.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UsageError, match=r"drafter\.safetensors"):
        open_build(build)


def test_a_graph_of_another_model_is_refused_before_the_first_request(build: Path) -> None:
    shutil.copy(build / "engine" / "drafter.b1.onnx", build / "engine" / "target.b1.onnx")
    _forget_sizes(build)
    engine = open_build(build).engine
    with pytest.raises(UsageError, match=r"target\.b1\.onnx` takes"):
        engine.preload()


@pytest.mark.parametrize(("key", "value"), [("draft_tokens", 500), ("draft_tokens", 0), ("max_batch_size", 0)])
def test_limits_that_cannot_be_are_refused(build: Path, key: str, value: int) -> None:
    path = build / "manifest.json"
    document = json.loads(path.read_text())
    document["shapes"][key] = value
    path.write_text(json.dumps(document))
    with pytest.raises(UsageError, match=r"manifest\.json"):
        open_build(build)


@pytest.mark.parametrize("threads", [0, -1, 10**6])
def test_a_number_of_threads_without_sense_is_refused(threads: int) -> None:
    with pytest.raises(UsageError, match="threads were asked for"):
        usable_threads(threads)


def _forget_sizes(build: Path) -> None:
    path = build / "manifest.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"files": []}))
