"""Opens the engines of a TensorRT build on this machine's GPU."""

from __future__ import annotations

from pathlib import Path

from peagle_trt.engine.batched_engine import BatchedEngine
from peagle_trt.engine.graph_record import contradiction
from peagle_trt.engine.tensorrt.device import open_device
from peagle_trt.engine.tensorrt.library import Library, load_library
from peagle_trt.engine.tensorrt.passes import TensorRTPasses
from peagle_trt.engine.tensorrt.support import capability_of, require_gpu, supported_capabilities
from peagle_trt.errors import MachineError, UsageError
from peagle_trt.machine import Machine, probe_machine
from peagle_trt.spec import CompiledEngine, EngineManifest


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
    library = require_runnable(manifest, machine or probe_machine())
    return BatchedEngine(build_path, manifest, TensorRTPasses(library, open_device(), build_path, manifest))


def require_runnable(manifest: EngineManifest, machine: Machine) -> Library:
    """The library that runs a build's engines on this machine.

    Raises:
        MachineError: There is no GPU, or another one or another version than the engines were compiled for.
        UsageError: The build holds no engines.
    """
    gpu = require_gpu(manifest.backend, machine)
    library = load_library(manifest.backend)
    check_engines(manifest, library, capability_of(gpu), gpu.name)
    return library


def check_engines(manifest: EngineManifest, library: Library, capability: str, gpu_name: str) -> None:
    """Refuse engines that were compiled for another GPU or by another version.

    Raises:
        MachineError: They were.
        UsageError: The build holds no engines.
    """
    _require_both(manifest)
    for engine in manifest.engines.values():
        is_ours = (engine.compiler, engine.compiler_version) == (library.backend, library.version)
        if is_ours and capability in engine.compute_capabilities:
            continue
        made_for = " and ".join(f"SM{each}" for each in engine.compute_capabilities)
        hint = f"build it again here, or with --sm {capability}"
        if library.is_ahead_of_time and capability not in supported_capabilities(library):
            hint = "build it again here with --backend tensorrt"
        elif not is_ours:
            hint = f"build it again here, or install {engine.compiler} {engine.compiler_version}"
        raise MachineError(
            f"`{engine.path}` was compiled for {made_for} by {engine.compiler} {engine.compiler_version}; "
            f"this machine has SM{capability} ({gpu_name}) and {library.backend} {library.version}",
            hint=hint,
        )


def check_record(manifest: EngineManifest) -> None:
    """Refuse a manifest whose engines are not what it says elsewhere: it was edited, or belongs to another build.

    Raises:
        UsageError: It is.
    """
    _require_both(manifest)
    listed = {file.path: file for file in manifest.files}
    for role, engine in manifest.engines.items():
        file = listed.get(engine.path)
        is_whole = file is not None and (file.is_sampled or file.sha256 == engine.sha256)
        if file is None or not is_whole or file.size_bytes != engine.size_bytes:
            raise contradiction(manifest, f"its {role} `{engine.path}` is not the file of that name in its list")
        if Path(engine.path).stem != role:
            raise contradiction(manifest, f"`{engine.path}` is not its {role}")
        if engine.compiler != manifest.backend or not engine.compute_capabilities:
            raise contradiction(manifest, f"`{engine.path}` was compiled by {engine.compiler}")
        _check_sizes(manifest, role, engine)


def _check_sizes(manifest: EngineManifest, role: str, engine: CompiledEngine) -> None:
    wanted = {"B": manifest.shapes.max_batch_size}
    if role == "drafter":
        wanted["K"] = manifest.shapes.max_draft_tokens
    for name, size in wanted.items():
        largest = max((profile.dims[name][2] for profile in engine.profiles if name in profile.dims), default=0)
        if largest != size:
            raise contradiction(manifest, f"`{engine.path}` takes {name} up to {largest}, and its limits say {size}")


def _require_both(manifest: EngineManifest) -> None:
    if set(manifest.engines) != {"target", "drafter"}:
        raise UsageError(f"the build `{manifest.name}` holds no engines of `{manifest.backend}`", hint="build it again")
