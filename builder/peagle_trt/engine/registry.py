"""The backends there are, and the one a build was made for."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from peagle_trt.bundle.registry import BUNDLE_BACKENDS, refuse_to_run, require_parallel
from peagle_trt.engine.graph_record import check_graphs
from peagle_trt.engine.protocol import Engine
from peagle_trt.errors import MachineError, PlanError, UsageError
from peagle_trt.machine import Machine, probe_machine
from peagle_trt.spec import DrafterConfig, EngineManifest

if TYPE_CHECKING:
    from peagle_trt.engine.tensorrt.library import Library

BACKENDS = ("onnxruntime", "tensorrt-rtx", "tensorrt")
"""Names that `--backend` takes, besides `auto`."""

ALL_BACKENDS = (*BACKENDS, *BUNDLE_BACKENDS)
"""Those, and other projects' servers, for which a build holds no engine."""

COMPILING_BACKENDS = ("tensorrt-rtx", "tensorrt")
"""Those whose engines are compiled when the build is made, from one batched graph of each model."""

_NOT_INSTALLED = "is not installed"


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
    if requested not in ALL_BACKENDS:
        raise UsageError(f"unknown backend `{requested}`", hint=f"known backends: auto, {', '.join(ALL_BACKENDS)}")
    return requested, "asked for"


def require_method(backend: str, drafter: DrafterConfig) -> None:
    """Refuse a head that a backend does not run.

    Raises:
        PlanError: It is a plain EAGLE-3 head, and the backend runs P-EAGLE heads alone.
    """
    if backend in BUNDLE_BACKENDS:
        require_parallel(backend, drafter)
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
    if manifest.backend in BUNDLE_BACKENDS:
        raise refuse_to_run(manifest)
    require_method(manifest.backend, manifest.drafter)
    if manifest.backend == "onnxruntime":
        from peagle_trt.engine.onnxruntime import OnnxRuntimeEngine

        return OnnxRuntimeEngine(build_path, manifest, num_threads=num_threads)
    if manifest.backend in COMPILING_BACKENDS:
        from peagle_trt.engine.tensorrt.engine import open_tensorrt_engine

        return open_tensorrt_engine(build_path, manifest)
    raise _unknown_backend(manifest)


def _unknown_backend(manifest: EngineManifest) -> UsageError:
    return UsageError(f"the build's backend `{manifest.backend}` is unknown", hint="build it again with this release")


def check_record(manifest: EngineManifest) -> None:
    """Refuse a build whose manifest names graphs or engines that its backend cannot have.

    Raises:
        UsageError: The backend is unknown, or the manifest was edited.
    """
    if manifest.backend in BUNDLE_BACKENDS:
        raise refuse_to_run(manifest)
    if manifest.backend not in BACKENDS:
        raise _unknown_backend(manifest)
    is_compiled = manifest.backend in COMPILING_BACKENDS
    if any((role in ("target", "drafter")) != is_compiled for role in manifest.graphs) or len(manifest.graphs) < 2:
        raise UsageError(
            f"the build `{manifest.name}` holds no graphs for `{manifest.backend}`", hint="build it again with it"
        )
    if is_compiled:
        from peagle_trt.engine.tensorrt import engine

        engine.check_record(manifest)
    else:
        check_graphs(manifest)


def require_runnable(manifest: EngineManifest, machine: Machine | None = None) -> None:
    """Refuse a build that this machine cannot run, without loading anything of it.

    Raises:
        MachineError: It cannot.
        UsageError: The build holds no engines.
    """
    if manifest.backend in COMPILING_BACKENDS:
        from peagle_trt.engine.tensorrt import engine

        engine.require_runnable(manifest, machine or probe_machine())


def _choose(machine: Machine) -> tuple[str, str]:
    if not machine.gpus:
        return "onnxruntime", "this machine shows no NVIDIA GPU; it runs on any CPU"
    from peagle_trt.engine.tensorrt.support import capability_of, find_driver_problem, supported_capabilities

    gpu = machine.gpus[0]
    problem = find_driver_problem(machine)
    if problem:
        return "onnxruntime", f"the {gpu.name} stays unused: {problem}"
    reasons: list[str] = []
    for backend, name in (("tensorrt", "TensorRT"), ("tensorrt-rtx", "TensorRT-RTX")):
        library = _try_library(backend, reasons)
        if library is None:
            continue
        if not library.is_ahead_of_time or capability_of(gpu) in supported_capabilities(library):
            # What is not installed need not be explained; what is, and cannot be used, must.
            passed_over = [reason for reason in reasons if not reason.endswith(_NOT_INSTALLED)]
            return backend, "; ".join([f"{name} is installed, and compiles for this {gpu.name}", *passed_over])
        reasons.append(f"{name} does not compile for SM{capability_of(gpu)}")
    return "onnxruntime", f"the {gpu.name} stays unused: {', and '.join(reasons)}"


def _try_library(backend: str, reasons: list[str]) -> Library | None:
    """A backend's library, or None and one more reason."""
    from peagle_trt.engine.tensorrt.library import MODULES, load_library

    if importlib.util.find_spec(MODULES[backend]) is None:
        reasons.append(f"`{MODULES[backend]}` {_NOT_INSTALLED}")
        return None
    try:
        return load_library(backend)
    except MachineError as error:
        reasons.append(error.message)
        return None
