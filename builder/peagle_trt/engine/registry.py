"""The backends there are, and the one a build was made for."""

from __future__ import annotations

from pathlib import Path

from peagle_trt.engine.protocol import Engine
from peagle_trt.errors import UsageError
from peagle_trt.spec import EngineManifest

BACKENDS = ("onnxruntime",)
"""Names that `--backend` takes, besides `auto`."""


def choose_backend(requested: str) -> tuple[str, str]:
    """The backend to use and the reason, in words.

    Args:
        requested: A name of `BACKENDS`, or "auto".

    Raises:
        UsageError: There is no backend of that name.
    """
    if requested == "auto":
        return "onnxruntime", "the only backend of this release; it runs on any CPU"
    if requested not in BACKENDS:
        raise UsageError(f"unknown backend `{requested}`", hint=f"known backends: auto, {', '.join(BACKENDS)}")
    return requested, "asked for"


def check_engine(build_path: Path, manifest: EngineManifest) -> None:
    """Load every engine of a build once, one after the other.

    Raises:
        MachineError: This machine cannot load one.
    """
    from peagle_trt.engine.ort_graph import check_graph

    for path in manifest.graphs.values():
        check_graph(build_path / path, manifest)


def open_engine(build_path: Path, manifest: EngineManifest, *, num_threads: int | None = None) -> Engine:
    """Load a build's engines.

    Args:
        build_path: Folder of the build.
        manifest: Its manifest.
        num_threads: Threads of the CPU backends; None takes every core this process may use.

    Raises:
        UsageError: The build was made for a backend this release does not have.
        MachineError: This machine cannot load it.
    """
    if manifest.backend == "onnxruntime":
        from peagle_trt.engine.onnxruntime import OnnxRuntimeEngine

        return OnnxRuntimeEngine(build_path, manifest, num_threads=num_threads)
    raise UsageError(f"the build's backend `{manifest.backend}` is unknown", hint="build it again with this release")
