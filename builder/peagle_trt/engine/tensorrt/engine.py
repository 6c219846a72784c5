"""Opens the engines of a TensorRT build on this machine's GPU."""

from __future__ import annotations

from pathlib import Path

from peagle_trt.engine.batched_engine import BatchedEngine
from peagle_trt.engine.tensorrt.device import open_device
from peagle_trt.engine.tensorrt.library import Library, load_library
from peagle_trt.engine.tensorrt.passes import TensorRTPasses
from peagle_trt.engine.tensorrt.support import capability_of, require_gpu
from peagle_trt.errors import MachineError, UsageError
from peagle_trt.machine import Machine, probe_machine
from peagle_trt.spec import EngineManifest


def open_tensorrt_engine(build_path: Path, manifest: EngineManifest, machine: Machine | None = None) -> BatchedEngine:
    """Load a build's engines onto the GPU; the weights move there with the first pass, or with `preload`.

    Args:
        build_path: Folder of the build.
        manifest: Its manifest.
        machine: Where; None looks around.

    Raises:
        MachineError: There is no GPU, or another one or another version than the engines were compiled for.
        UsageError: The build holds no engines.
    """
    machine = machine or probe_machine()
    gpu = require_gpu(manifest.backend, machine)
    library = load_library(manifest.backend)
    check_engines(manifest, library, capability_of(gpu), gpu.name)
    return BatchedEngine(build_path, manifest, TensorRTPasses(library, open_device(), build_path, manifest))


def check_engines(manifest: EngineManifest, library: Library, capability: str, gpu_name: str) -> None:
    """Refuse engines that were compiled for another GPU or by another version.

    Raises:
        MachineError: They were.
        UsageError: The build holds no engines.
    """
    if set(manifest.engines) != {"target", "drafter"}:
        raise UsageError(f"the build `{manifest.name}` holds no engines of `{manifest.backend}`", hint="build it again")
    for engine in manifest.engines.values():
        is_ours = (engine.compiler, engine.compiler_version) == (library.backend, library.version)
        if is_ours and capability in engine.compute_capabilities:
            continue
        made_for = " and ".join(f"SM{each}" for each in engine.compute_capabilities)
        raise MachineError(
            f"`{engine.path}` was compiled for {made_for} by {engine.compiler} {engine.compiler_version}; "
            f"this machine has SM{capability} ({gpu_name}) and {library.backend} {library.version}",
            hint=f"build it again here, or with --sm {capability}",
        )
