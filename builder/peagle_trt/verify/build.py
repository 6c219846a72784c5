"""Checks a finished build: every file's digest, then the engine against the reference."""

from __future__ import annotations

from pathlib import Path

import msgspec

from peagle_trt.build_folder import VERIFICATION_NAME, check_files, read_manifest
from peagle_trt.engine.registry import check_record
from peagle_trt.errors import VerificationError
from peagle_trt.quant import open_stored
from peagle_trt.quant.weight_errors import WeightError
from peagle_trt.verify.comparison import Outcome, compare_with_reference
from peagle_trt.verify.sources import build_source


def verify_build(build_path: Path) -> Outcome:
    """Verify a build with nothing but its own files.

    How far its weights are from the checkpoints' is what was measured when it was made, of the very bytes whose digests
    are checked here.

    Raises:
        UsageError: The folder is no finished build, or its manifest contradicts itself.
        VerificationError: A file changed since it was built, or the engine disagrees with the reference.
    """
    manifest = read_manifest(build_path)
    check_files(build_path, manifest.files)
    check_record(manifest)
    stored_target = open_stored(build_path / "engine" / "target.safetensors")
    stored_drafter = open_stored(build_path / "engine" / "drafter.safetensors")
    source = build_source(manifest.target, manifest.drafter, stored_target, stored_drafter)
    weights = _recorded_weights(build_path)
    return msgspec.structs.replace(compare_with_reference(build_path, manifest, source), weights=weights)


def _recorded_weights(build_path: Path) -> tuple[WeightError, ...]:
    """What the build's own record says; nothing of a build that was made before it was measured."""
    path = build_path / VERIFICATION_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=Outcome).weights
    except (OSError, msgspec.MsgspecError) as error:
        raise VerificationError(f"`{path}` cannot be read: {error}", hint="build again with --force") from error
