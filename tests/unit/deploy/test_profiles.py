"""A repository with a second configuration for servers without a GPU."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from peagle_trt.build_folder import read_manifest
from peagle_trt.deploy.check import check_repository
from peagle_trt.deploy.hosting.settings import HostSettings, engine_build_path
from peagle_trt.deploy.model_configs import cpu_profile
from peagle_trt.deploy.repository import assemble_repository
from peagle_trt.deploy.serving import require_servable
from peagle_trt.errors import UsageError
from peagle_trt.spec import CompiledEngine, EngineManifest


@pytest.fixture
def cpu_build_path(build_path: Path, tmp_path: Path) -> Path:
    """The same pair once more, for larger batches."""
    path = tmp_path / "cpu build"
    shutil.copytree(build_path, path)
    manifest = read_manifest(path)
    shapes = msgspec.structs.replace(manifest.shapes, max_batch_size=3)
    write(path, msgspec.structs.replace(manifest, shapes=shapes))
    return path


def compiled_engine(role: str) -> CompiledEngine:
    return CompiledEngine(
        path=f"engine/{role}.plan",
        compiler="tensorrt",
        compiler_version="11.0",
        compute_capabilities=("100",),
        profiles=(),
        plugin_version="1",
        size_bytes=1,
        sha256="0" * 64,
        build_seconds=1.0,
        peak_memory_bytes=1,
    )


def write(path: Path, manifest: EngineManifest) -> None:
    (path / "manifest.json").write_bytes(msgspec.json.encode(manifest))


def test_the_second_build_lies_beside_the_first(build_path: Path, cpu_build_path: Path, tmp_path: Path) -> None:
    repository = assemble_repository(build_path, tmp_path / "repo", cpu_build_path=cpu_build_path)
    model = repository.path / "peagle"
    assert (model / "1/build-cpu/engine/target.b8.onnx").samefile(cpu_build_path / "engine/target.b8.onnx")
    plain, cpu = (model / "config.pbtxt").read_text(), (model / "configs/cpu.pbtxt").read_text()
    assert cpu == cpu_profile(read_manifest(cpu_build_path), HostSettings())
    assert plain != cpu
    assert not (repository.path / "preprocessing/configs").exists()
    assert check_repository(repository.path) == []
    require_servable(repository.path, "cpu")


def test_without_a_second_build_there_is_no_profile(build_path: Path, tmp_path: Path) -> None:
    path = assemble_repository(build_path, tmp_path / "repo").path
    assert not (path / "peagle/configs").exists()
    with pytest.raises(UsageError, match="has no profile `cpu`"):
        require_servable(path, "cpu")
    with pytest.raises(UsageError, match="has no profile `cpu`"):
        require_servable(build_path, "cpu")


def test_a_second_build_of_something_else_is_refused(build_path: Path, cpu_build_path: Path, tmp_path: Path) -> None:
    manifest = read_manifest(cpu_build_path)
    write(cpu_build_path, msgspec.structs.replace(manifest, name="another"))
    with pytest.raises(UsageError, match="has another target than the first build"):
        assemble_repository(build_path, tmp_path / "repo", cpu_build_path=cpu_build_path)
    files = tuple(msgspec.structs.replace(file, sha256="0" * 64) for file in manifest.files)
    write(cpu_build_path, msgspec.structs.replace(manifest, files=files))
    with pytest.raises(UsageError, match="has another tokenizer than the first build"):
        assemble_repository(build_path, tmp_path / "repo", cpu_build_path=cpu_build_path)
    assert not (tmp_path / "repo").exists()


def test_a_second_build_for_a_gpu_is_refused(
    build_path: Path, cpu_build_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whether its engines are sound is not asked here.
    monkeypatch.setattr("peagle_trt.deploy.build_files.check_record", lambda _: None)
    manifest = read_manifest(cpu_build_path)
    engines = {role: compiled_engine(role) for role in ("target", "drafter")}
    write(cpu_build_path, msgspec.structs.replace(manifest, backend="tensorrt", engines=engines))
    with pytest.raises(UsageError, match="was built for backend `tensorrt`, which wants a GPU"):
        assemble_repository(build_path, tmp_path / "repo", cpu_build_path=cpu_build_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: ", "`configs/cpu.pbtxt` cannot be read"),
        ('name: "peagle" backend: "python"', "`configs/cpu.pbtxt`: its inputs are not those of this version"),
        ('name: "another" backend: "python"', "`configs/cpu.pbtxt`: its configuration says `another`"),
    ],
)
def test_a_damaged_profile_is_found(
    build_path: Path, cpu_build_path: Path, tmp_path: Path, text: str, message: str
) -> None:
    path = assemble_repository(build_path, tmp_path / "repo", cpu_build_path=cpu_build_path).path
    (path / "peagle/configs/cpu.pbtxt").write_text(text)
    assert any(message in finding.message for finding in check_repository(path))


def test_a_profile_whose_build_is_gone_is_found(build_path: Path, cpu_build_path: Path, tmp_path: Path) -> None:
    path = assemble_repository(build_path, tmp_path / "repo", cpu_build_path=cpu_build_path).path
    shutil.rmtree(path / "peagle/1/build-cpu")
    messages = [finding.message for finding in check_repository(path)]
    assert messages == ["`configs/cpu.pbtxt`: `1/build-cpu/manifest.json` is missing"]


def test_a_model_opens_the_build_that_its_configuration_names() -> None:
    def arguments(parameters: str) -> dict[str, str]:
        return {
            "model_config": f'{{"parameters": {parameters}}}',
            "model_repository": "/r/peagle",
            "model_version": "1",
        }

    assert engine_build_path(arguments("{}")) == Path("/r/peagle/1/build")
    assert engine_build_path(arguments('{"build": {"string_value": "build-cpu"}}')) == Path("/r/peagle/1/build-cpu")
    with pytest.raises(UsageError, match=r"parameter `build` is `\.\./\.\./secrets`"):
        engine_build_path(arguments('{"build": {"string_value": "../../secrets"}}'))
