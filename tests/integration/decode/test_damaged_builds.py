"""A build that was damaged after it was finished is refused when it is opened, with the file's name."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from peagle_trt.decode.session import open_build
from peagle_trt.engine.ort_graph import usable_threads
from peagle_trt.errors import MachineError, UsageError, VerificationError
from peagle_trt.verify.build import verify_build


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
    _note_anew(build)
    engine = open_build(build).engine
    with pytest.raises(UsageError, match=r"target\.b1\.onnx` takes"):
        engine.preload()


def test_a_step_graph_of_other_numbers_is_found_out(build: Path) -> None:
    import onnx

    path = build / "engine" / "target.step.onnx"
    model = onnx.load_model(path, load_external_data=False)
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            node.attribute.append(onnx.helper.make_attribute("scale", 0.2))
    path.write_bytes(model.SerializeToString())
    _note_anew(build)
    with pytest.raises(VerificationError, match=r"plain step of two, after \d+ rows: target logits are off by"):
        verify_build(build)


def test_a_step_graph_that_cannot_be_loaded_is_found_out(build: Path) -> None:
    (build / "engine" / "target.step.onnx").write_bytes(b"nothing")
    _note_anew(build)
    with pytest.raises(MachineError, match=r"target\.step\.onnx"):
        verify_build(build)


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


def _note_anew(build: Path) -> None:
    """Make the manifest one of the files as they are now."""
    path = build / "manifest.json"
    document = json.loads(path.read_text())
    for file in document["files"]:
        content = (build / file["path"]).read_bytes()
        file |= {"size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    path.write_text(json.dumps(document))
