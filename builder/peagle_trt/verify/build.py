"""Checks a finished build: every file's digest, then the engine against the reference."""

from __future__ import annotations

from pathlib import Path

from peagle_trt.build_folder import read_manifest
from peagle_trt.errors import VerificationError
from peagle_trt.files import sha256_of
from peagle_trt.quant import open_stored
from peagle_trt.spec import EngineManifest
from peagle_trt.verify.comparison import Outcome, compare_with_reference
from peagle_trt.verify.sources import build_source


def verify_build(build_path: Path) -> Outcome:
    """Verify a build with nothing but its own files.

    Raises:
        UsageError: The folder is no finished build.
        VerificationError: A file changed since it was built, or the engine disagrees with the reference.
    """
    manifest = read_manifest(build_path)
    check_files(build_path, manifest)
    stored_target = open_stored(build_path / "engine" / "target.safetensors")
    stored_drafter = open_stored(build_path / "engine" / "drafter.safetensors")
    source = build_source(manifest.target, manifest.drafter, stored_target, stored_drafter)
    return compare_with_reference(build_path, manifest, source)


def check_files(build_path: Path, manifest: EngineManifest) -> None:
    """Compare every file with the digest in the manifest.

    Raises:
        VerificationError: A file is missing or changed.
    """
    for file in manifest.files:
        path = build_path / file.path
        if not path.is_file():
            raise VerificationError(f"`{build_path}` lacks `{file.path}`", hint="build it again")
        if path.stat().st_size != file.size_bytes or sha256_of(path) != file.sha256:
            raise VerificationError(f"`{path}` is not the file that was built", hint="build it again")
