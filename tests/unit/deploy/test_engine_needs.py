"""A repository of compiled engines says which machine it is for, and its check says when this is not that machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from peagle_trt.build_folder import read_manifest
from peagle_trt.cli.main import run
from peagle_trt.deploy.check import check_repository
from peagle_trt.deploy.engine_needs import engine_needs
from peagle_trt.deploy.repository import assemble_repository
from peagle_trt.engine.tensorrt import engine as tensorrt_engine
from peagle_trt.engine.tensorrt.library import Library
from peagle_trt.machine import Gpu, Machine, probe_machine
from peagle_trt.spec import EngineManifest

from .test_profiles import compiled_engine, write

B200 = Gpu(name="NVIDIA B200", compute_capability="10.0", memory_bytes=192 << 30, driver="590.1")
H200 = Gpu(name="NVIDIA H200", compute_capability="9.0", memory_bytes=141 << 30, driver="590.1")


def machine_with(*gpus: Gpu) -> Machine:
    return replace(probe_machine(), gpus=gpus, driver_cuda_version=13010)


@pytest.fixture
def gpu_build(build_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # Whether its engines are sound is not asked here, and TensorRT need not be installed.
    monkeypatch.setattr("peagle_trt.deploy.build_files.check_record", lambda _: None)
    library = Library(backend="tensorrt", module=None, version="11.0")
    monkeypatch.setattr(tensorrt_engine, "load_library", lambda _: library)
    engines = {role: compiled_engine(role) for role in ("target", "drafter")}
    write(build_path, msgspec.structs.replace(read_manifest(build_path), backend="tensorrt", engines=engines))
    return build_path


def test_a_build_for_the_cpu_needs_nothing(manifest: EngineManifest) -> None:
    assert engine_needs(manifest) is None


def test_gpus_that_one_engine_alone_runs_on_do_not_count(manifest: EngineManifest) -> None:
    target, drafter = compiled_engine("target"), compiled_engine("drafter")
    target = msgspec.structs.replace(target, compute_capabilities=("90", "100", "120"))
    drafter = msgspec.structs.replace(drafter, compute_capabilities=("120", "100"))
    needs = engine_needs(msgspec.structs.replace(manifest, engines={"target": target, "drafter": drafter}))
    assert str(needs) == "a GPU of SM100 or SM120 and tensorrt 11.0"


def test_the_configuration_and_the_command_say_what_engines_need(
    gpu_build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--json", "repo", str(gpu_build), "-o", str(tmp_path / "repo")]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["needs"] == {"compute_capabilities": ["100"], "libraries": ["tensorrt 11.0"]}
    assert "it runs on a GPU of SM100 and tensorrt 11.0" in shown.err
    config = (tmp_path / "repo/peagle/config.pbtxt").read_text()
    assert 'key: "compute_capabilities"' in config
    assert 'string_value: "tensorrt 11.0"' in config


@pytest.mark.parametrize(
    ("gpus", "reason"),
    [((), "this machine shows none"), ((H200,), "this machine has SM90 (NVIDIA H200)")],
    ids=["no GPU", "another GPU"],
)
def test_the_check_says_that_another_machine_is_needed(
    gpu_build: Path, tmp_path: Path, gpus: tuple[Gpu, ...], reason: str
) -> None:
    repository = assemble_repository(gpu_build, tmp_path / "repo").path
    (finding,) = check_repository(repository, machine_with(*gpus))
    assert not finding.is_fatal
    assert finding.message.startswith("`1/build` needs a GPU of SM100 and tensorrt 11.0, and would not load on this")
    assert reason in finding.message


def test_the_check_is_content_with_the_right_machine(gpu_build: Path, tmp_path: Path) -> None:
    repository = assemble_repository(gpu_build, tmp_path / "repo").path
    assert check_repository(repository, machine_with(B200)) == []


def test_a_manifest_that_cannot_be_read_is_found(build_path: Path, tmp_path: Path) -> None:
    repository = assemble_repository(build_path, tmp_path / "repo").path
    manifest = repository / "peagle/1/build/manifest.json"
    manifest.unlink()
    manifest.write_text("{")
    (finding,) = check_repository(repository)
    assert finding.is_fatal
    assert "`1/build` cannot be read" in finding.message
