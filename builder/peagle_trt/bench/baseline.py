"""A second build as the baseline of a measurement: the same target behind another head."""

from __future__ import annotations

from pathlib import Path

import msgspec

from peagle_trt.decode.session import LoadedBuild, open_build, require_method
from peagle_trt.errors import UsageError
from peagle_trt.spec import EngineManifest


def open_baseline(path: Path, method: str, loaded: LoadedBuild, *, num_threads: int | None) -> LoadedBuild:
    """Open the baseline's build.

    Args:
        path: Its folder.
        method: Method of its head.
        loaded: The build that is compared with it.
        num_threads: Threads of the CPU backends.

    Raises:
        UsageError: Its head is of another kind, or the two would not be compared on equal terms.
    """
    baseline = open_build(path, num_threads=num_threads)
    require_method(baseline.manifest, method)
    if loaded.manifest.drafter.method == method:
        raise UsageError(
            f"the baseline is `{method}`, and so is what is compared with it",
            hint="give the P-EAGLE build as BUILD and the EAGLE-3 build as --baseline-build",
        )
    ours, theirs = _terms(loaded.manifest), _terms(baseline.manifest)
    for name, term in ours.items():
        if term != theirs[name]:
            raise UsageError(
                f"`{path}` cannot be the baseline of `{loaded.path}`: {name} not the same",
                hint="build both from the same target with the same --precision, --backend and limits",
            )
    return baseline


def _terms(manifest: EngineManifest) -> dict[str, object]:
    """What must be equal."""
    weights = "engine/target.safetensors"
    return {
        # Each head names the layers that it reads itself.
        "the target is": msgspec.structs.replace(manifest.target, aux_layer_ids=()),
        "the precision is": manifest.precision,
        "the backend is": manifest.backend,
        "the limits are": msgspec.structs.replace(manifest.shapes, draft_tokens=1),
        "the target's weights are": {f.path: f.sha256 for f in manifest.files if f.path.startswith(weights)},
    }
