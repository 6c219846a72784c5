"""The backends there are, and the one a build was made for."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from peagle_trt.engine.protocol import Engine
from peagle_trt.errors import PlanError, UsageError
from peagle_trt.machine import Machine, probe_machine
from peagle_trt.spec import DrafterConfig, EngineManifest

BACKENDS = ("onnxruntime", "tensorrt-rtx", "tensorrt")
"""Names that `--backend` takes, besides `auto`."""

COMPILING_BACKENDS = ("tensorrt-rtx", "tensorrt")
"""Those whose engines are compiled when the build is made, from one batched graph of each model."""


def choose_backend(requested: str, machine: Machine | None = None) -> tuple[str, str]:
    """The backend to use and the reason, in words.

    Args:
        requested: A name of `BACKENDS`, or "auto".
        machine: What to choose for; None looks around.

    Raises:
        UsageError: There is no backend of that name.
    """
    if requested == "auto":
        return _choose(machine or probe_machine())
    if requested not in BACKENDS:
        raise UsageError(f"unknown backend `{requested}`", hint=f"known backends: auto, {', '.join(BACKENDS)}")
    return requested, "asked for"


def require_method(backend: str, drafter: DrafterConfig) -> None:
    """Refuse a head that a backend does not run.

    Raises:
        PlanError: It is a plain EAGLE-3 head, and the backend runs P-EAGLE heads alone.
    """
    if not drafter.is_parallel and backend in COMPILING_BACKENDS:
        raise PlanError(
            f"backend `{backend}` runs no plain EAGLE-3 heads, which draft one token a pass (method `eagle3`)",
            hint="use --backend onnxruntime, or a P-EAGLE head",
        )


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
        PlanError: The backend does not run this kind of head.
        MachineError: This machine cannot load it.
    """
    require_method(manifest.backend, manifest.drafter)
    if manifest.backend == "onnxruntime":
        from peagle_trt.engine.onnxruntime import OnnxRuntimeEngine

        return OnnxRuntimeEngine(build_path, manifest, num_threads=num_threads)
    if manifest.backend in COMPILING_BACKENDS:
        from peagle_trt.engine.tensorrt.engine import open_tensorrt_engine

        return open_tensorrt_engine(build_path, manifest)
    raise UsageError(f"the build's backend `{manifest.backend}` is unknown", hint="build it again with this release")


def _choose(machine: Machine) -> tuple[str, str]:
    if not machine.gpus:
        return "onnxruntime", "this machine shows no NVIDIA GPU; it runs on any CPU"
    gpu = machine.gpus[0]
    if importlib.util.find_spec("tensorrt") is not None:
        return "tensorrt", f"TensorRT is installed, and compiles for this {gpu.name}"
    if importlib.util.find_spec("tensorrt_rtx") is None:
        return "onnxruntime", f"the {gpu.name} stays unused: neither `tensorrt` nor `tensorrt_rtx` is installed"
    from peagle_trt.engine.tensorrt.library import load_library
    from peagle_trt.engine.tensorrt.support import capability_of, supported_capabilities

    if capability_of(gpu) in supported_capabilities(load_library("tensorrt-rtx")):
        return "tensorrt-rtx", f"TensorRT-RTX is installed, and compiles for this {gpu.name}"
    return "onnxruntime", (
        f"the {gpu.name} stays unused: TensorRT-RTX does not compile for SM{capability_of(gpu)}, "
        "and `tensorrt` is not installed"
    )
