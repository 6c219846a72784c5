"""Assembles a model repository that stands on its own: a build goes in, a folder that a server can load comes out."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from peagle_trt import files
from peagle_trt.build_folder import MANIFEST_NAME
from peagle_trt.deploy.build_files import read_whole_build
from peagle_trt.deploy.engine_needs import EngineNeeds, engine_needs
from peagle_trt.deploy.hosting.settings import BUILD_FOLDER, CPU_BUILD_FOLDER, CPU_PROFILE, HostSettings
from peagle_trt.deploy.model_configs import cpu_profile, model_configs
from peagle_trt.errors import UsageError
from peagle_trt.spec import EngineManifest

logger = logging.getLogger(__name__)

VERSION = "1"
ENGINE_BUILD = Path("peagle") / VERSION / BUILD_FOLDER
"""Where a repository holds the whole build, relative to its folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A repository on disk.

    Attributes:
        path: Its folder.
        model_names: Its models.
        size_bytes: What the builds in it weigh.
        num_copied_files: Files whose bytes had to be copied because the file system could not link them.
        needs: What its engines want of the machine; None where any CPU runs them.
    """

    path: Path
    model_names: tuple[str, ...]
    size_bytes: int
    num_copied_files: int
    needs: EngineNeeds | None = None


def assemble_repository(
    build_path: Path, output_path: Path, *, settings: HostSettings | None = None, cpu_build_path: Path | None = None
) -> Repository:
    """Writes the repository of a build; an earlier repository in the same place is replaced at the end.

    Args:
        build_path: A finished build.
        output_path: Folder to write; new, empty, or an earlier repository.
        settings: Parameters of the `peagle` model.
        cpu_build_path: A build of the same pair that a server opens where it is told `--model-config-name=cpu`.

    Raises:
        UsageError: A path is not a finished build, the second build is of another target or tokenizer or wants a
            GPU too, or `output_path` holds something else.
        MachineError: The folder cannot be written.
    """
    manifest = read_whole_build(build_path)
    cpu_manifest = None if cpu_build_path is None else _read_cpu_build(cpu_build_path, manifest)
    _require_replaceable(output_path)
    staging = output_path.with_name(f".{output_path.name}.staging-{os.getpid()}")
    files.remove_folder(staging)
    try:
        repository = _write_models(build_path, staging, output_path, manifest, settings or HostSettings())
        if cpu_build_path is not None and cpu_manifest is not None:
            num_copied = _write_cpu_profile(cpu_build_path, cpu_manifest, staging, settings or HostSettings())
            repository = replace(
                repository,
                size_bytes=repository.size_bytes + sum(file.size_bytes for file in cpu_manifest.files),
                num_copied_files=repository.num_copied_files + num_copied,
            )
        _swap(staging, output_path)
    finally:
        files.remove_folder(staging)
    if repository.num_copied_files:
        logger.warning(
            "%d files were copied: `%s` cannot be linked from `%s`",
            repository.num_copied_files,
            build_path,
            output_path,
        )
    return repository


def is_repository(path: Path) -> bool:
    """Whether a folder is a repository of ours."""
    return (path / "peagle" / "config.pbtxt").is_file()


def _write_models(
    build_path: Path, staging: Path, output_path: Path, manifest: EngineManifest, settings: HostSettings
) -> Repository:
    num_copied_files = 0
    for name, config in model_configs(manifest, settings).items():
        files.write_text(staging / name / "config.pbtxt", config)
        version = staging / name / VERSION
        with files.naming_os_errors(version):
            version.mkdir()
        if name == "ensemble":
            # The server wants a version folder even where there is nothing to put in it, and git drops empty ones.
            files.write_text(version / ".gitkeep", "")
            continue
        files.write_text(version / "model.py", _model_source(name))
        if name == "tensorrt_llm_bls":
            # It asks the other models for everything.
            continue
        num_copied_files += _link(build_path, version / BUILD_FOLDER, _files_of(name, manifest))
    return Repository(
        path=output_path,
        model_names=tuple(sorted(model_configs(manifest, settings))),
        size_bytes=sum(file.size_bytes for file in manifest.files),
        num_copied_files=num_copied_files,
        needs=engine_needs(manifest),
    )


def _read_cpu_build(path: Path, manifest: EngineManifest) -> EngineManifest:
    cpu_manifest = read_whole_build(path)
    # Compiled engines run on the GPU that they were compiled for.
    if cpu_manifest.engines:
        raise UsageError(
            f"`{path}` was built for backend `{cpu_manifest.backend}`, which wants a GPU",
            hint="build the same pair with --backend onnxruntime",
        )
    for what, ours, theirs in (
        ("target", manifest.name, cpu_manifest.name),
        # Both ends of the ensemble are the same for both builds.
        ("tokenizer", _text_digests(manifest), _text_digests(cpu_manifest)),
    ):
        if ours != theirs:
            raise UsageError(
                f"`{path}` has another {what} than the first build",
                hint="build both from the same target; one repository answers with one model",
            )
    return cpu_manifest


def _text_digests(manifest: EngineManifest) -> list[str]:
    names = _files_of("preprocessing", manifest)
    return sorted(f"{file.path} {file.sha256}" for file in manifest.files if file.path in names)


def _write_cpu_profile(build_path: Path, manifest: EngineManifest, staging: Path, settings: HostSettings) -> int:
    """The second configuration and its build; how many files were copied."""
    files.write_text(staging / "peagle" / "configs" / f"{CPU_PROFILE}.pbtxt", cpu_profile(manifest, settings))
    return _link(build_path, staging / "peagle" / VERSION / CPU_BUILD_FOLDER, _files_of("peagle", manifest))


def _model_source(name: str) -> str:
    source = resources.files("peagle_trt_repo") / "models" / name / VERSION / "model.py"
    return source.read_text(encoding="utf-8")


def _files_of(model_name: str, manifest: EngineManifest) -> list[str]:
    text_files = [manifest.tokenizer.tokenizer, manifest.tokenizer.chat_template]
    names = [file.path for file in manifest.files] if model_name == "peagle" else [name for name in text_files if name]
    return [MANIFEST_NAME, *names]


def _link(build_path: Path, destination: Path, names: Iterable[str]) -> int:
    num_copied = 0
    for name in names:
        files.link_or_copy(build_path / name, destination / name)
        num_copied += not (destination / name).samefile(build_path / name)
    return num_copied


def _require_replaceable(output_path: Path) -> None:
    if not output_path.exists():
        return
    if not output_path.is_dir():
        raise UsageError(f"`{output_path}` is a file", hint="choose another folder")
    if not is_repository(output_path) and any(output_path.iterdir()):
        raise UsageError(
            f"`{output_path}` holds something that is not a repository of ours", hint="choose another folder"
        )


def _swap(staging: Path, output_path: Path) -> None:
    old = output_path.with_name(f".{output_path.name}.old-{os.getpid()}")
    with files.naming_os_errors(output_path):
        if output_path.exists():
            output_path.rename(old)
        staging.rename(output_path)
    files.remove_folder(old)
