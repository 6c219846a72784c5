"""A whole build for TensorRT-RTX on a machine without a GPU."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from peagle_trt.build_folder import read_manifest
from peagle_trt.cli.main import run
from peagle_trt.errors import VerificationError
from peagle_trt.files import sha256_of
from peagle_trt.machine import probe_machine
from peagle_trt.verify import verify_build
from peagle_trt.verify.subject import THE_GRAPHS
from peagle_trt.verify.tolerances import TOLERANCES
from tests.support.capabilities import needs
from tests.support.checkpoints import narrow_tensors, save_byte_tokenizer
from tests.support.models import save_drafter, save_target

pytestmark = [
    pytest.mark.rtx,
    needs("rtx"),
    pytest.mark.skipif(bool(probe_machine().gpus), reason="on a GPU the engine itself is verified"),
]
BUILD = ["build", "--target", "tiny", "--backend", "tensorrt-rtx", "--precision", "bf16"]


@pytest.fixture(scope="module")
def rtx_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rtx") / "tiny"
    assert run(["--quiet", *BUILD, "-o", str(path)]) == 0
    return path


def test_the_manifest_names_the_engines_and_what_they_are_for(rtx_build: Path) -> None:
    manifest = read_manifest(rtx_build)
    assert set(manifest.graphs) == set(manifest.engines) == {"target", "drafter"}
    for engine in manifest.engines.values():
        assert (engine.compiler, engine.compute_capabilities) == ("tensorrt-rtx", ("120",))
        assert engine.sha256 == sha256_of(rtx_build / engine.path)
        assert engine.path in {file.path for file in manifest.files}


def test_the_record_says_that_the_engine_did_not_run(rtx_build: Path) -> None:
    assert json.loads((rtx_build / "verification.json").read_text())["subject"] == THE_GRAPHS
    outcome = verify_build(rtx_build)
    assert outcome.subject == THE_GRAPHS
    assert outcome.summary().endswith(f"(of {THE_GRAPHS}; the engine did not run)")
    # Against the build's own weights nothing is rounded away.
    assert outcome.logit_tolerance == TOLERANCES["fp32"].logits


def test_a_second_run_compiles_nothing(rtx_build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*BUILD, "-o", str(rtx_build)]) == 0
    assert "nothing to do" in capsys.readouterr().err


def test_another_gpu_compiles_again_from_the_same_graphs(rtx_build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*BUILD, "--sm", "89", "--dry-run", "-o", str(rtx_build)]) == 0
    steps = dict(line.split()[:2] for line in capsys.readouterr().out.splitlines()[:6])
    assert (steps["graph"], steps["engine"], steps["verify"]) == ("cached", "to", "to")


def test_opening_it_without_a_gpu_is_refused(rtx_build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", str(rtx_build), "hello"]) == 3
    assert "runs on an NVIDIA GPU, and this machine shows none" in capsys.readouterr().err


def test_serving_it_without_a_gpu_is_refused_before_a_server_starts(
    rtx_build: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", str(rtx_build)]) == 3
    assert "starting tritonserver" not in capsys.readouterr().err


def test_an_engine_that_is_compiled_again_is_verified_again(
    rtx_build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "tiny"
    shutil.copytree(rtx_build, copy)
    (copy / "engine/target.plan").unlink()
    assert run([*BUILD, "-o", str(copy)]) == 0
    assert "verify ...\n" in capsys.readouterr().err


def test_a_short_build_compiles(tmp_path: Path) -> None:
    short = ["--max-sequence-length", "16", "-k", "1", "--max-batch-size", "1"]
    assert run(["--quiet", *BUILD, *short, "-o", str(tmp_path / "tiny")]) == 0


@pytest.mark.slow
def test_gpt_oss_with_its_windows_and_sinks_compiles(tmp_path: Path) -> None:
    save_target(tmp_path / "target", "GptOssForCausalLM")
    save_byte_tokenizer(tmp_path / "target")
    save_drafter(tmp_path / "head")
    for name in ("target", "head"):
        narrow_tensors(tmp_path / name)
    pair = ["--target", str(tmp_path / "target"), "--drafter", str(tmp_path / "head")]
    limits = ["--max-batch-size", "3", "--max-sequence-length", "64"]
    assert run(["--quiet", "build", *pair, *BUILD[3:], *limits, "-o", str(tmp_path / "build")]) == 0


def test_a_damaged_engine_is_found(rtx_build: Path, tmp_path: Path) -> None:
    copy = tmp_path / "tiny"
    shutil.copytree(rtx_build, copy)
    plan = copy / "engine/target.plan"
    plan.write_bytes(plan.read_bytes()[:-1] + b"?")
    with pytest.raises(VerificationError, match=r"target.plan` is not the file that was built"):
        verify_build(copy)


@pytest.mark.parametrize("given", ["abc", "12.0", "sm_120", ""])
def test_a_gpu_that_is_no_whole_number_is_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*BUILD, "--sm", given, "--dry-run"]) == 2
    assert f"'{given}' is no whole number" in capsys.readouterr().err


def test_gpus_to_compile_for_mean_nothing_to_the_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["build", "--target", "tiny", "--backend", "onnxruntime", "--sm", "120", "-o", str(tmp_path / "x")]
    assert run(command) == 2
    assert "backend `onnxruntime` compiles for none" in capsys.readouterr().err
