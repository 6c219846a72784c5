"""What a manifest may say about the graphs of a build for ONNX Runtime."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from peagle_trt.errors import UsageError
from peagle_trt.spec import EngineManifest

_STEP_ROLE = "target.step"
_GROUPED_ROLE = re.compile(r"(target|drafter)\.b([1-9][0-9]*)")


def check_graphs(manifest: EngineManifest) -> None:
    """Refuse a manifest whose graphs are not what it says elsewhere: it was edited, or belongs to another build.

    Raises:
        UsageError: It is.
    """
    listed = {file.path for file in manifest.files}
    most_groups = {"target": 0, "drafter": 0}
    for role, path in manifest.graphs.items():
        grouped = _GROUPED_ROLE.fullmatch(role)
        if grouped:
            model, groups = grouped[1], int(grouped[2])
            most_groups[model] = max(most_groups[model], groups)
        elif role != _STEP_ROLE:
            raise contradiction(
                manifest, f"one of its graphs is `{role}`, expected target.bG, drafter.bG or {_STEP_ROLE}"
            )
        if path not in listed:
            raise contradiction(manifest, f"its {role} `{path}` is not in its list of files")
        if PurePosixPath(path).name != f"{role}.onnx":
            raise contradiction(manifest, f"`{path}` is not its {role}")
    for model, groups in most_groups.items():
        if groups < manifest.shapes.max_batch_size:
            limit = manifest.shapes.max_batch_size
            raise contradiction(manifest, f"its {model} takes {groups} sequences, and its limits say {limit}")


def contradiction(manifest: EngineManifest, what: str) -> UsageError:
    """The error of a manifest that says two things."""
    return UsageError(f"the manifest of the build `{manifest.name}` contradicts itself: {what}", hint="build it again")
