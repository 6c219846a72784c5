"""The engine stage of a TensorRT backend: both graphs compiled, and a record of what was made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from peagle_trt.engine.tensorrt.compile import CompileOptions, compile_graph
from peagle_trt.engine.tensorrt.library import Library, load_library
from peagle_trt.engine.tensorrt.profiles import drafter_profiles, target_profiles
from peagle_trt.errors import MachineError
from peagle_trt.files import write_text
from peagle_trt.spec import CompiledEngine, EngineManifest

RECORD_FILE = "engine/compilation.json"


def compile_engines(
    build_path: Path,
    manifest: EngineManifest,
    options: CompileOptions,
    report: Callable[[str], None] = lambda line: None,
) -> tuple[str, ...]:
    """Compile the graphs of a build.

    Args:
        build_path: Folder of the build.
        manifest: Its manifest, which names the graphs.
        options: How.
        report: Told of every engine.

    Returns:
        The files it wrote, relative to the build.

    Raises:
        PeagleError: TensorRT refused a graph.
        MachineError: The library is not there.
    """
    library = load_library(manifest.backend)
    options = replace(options, plugin_version=_register_plugins(library, options))
    profiles = {"target": target_profiles(manifest.shapes), "drafter": drafter_profiles(manifest.shapes)}
    engines = {}
    for role, path in sorted(manifest.graphs.items()):
        onnx_path = build_path / path
        plan_path = onnx_path.with_suffix(".plan")
        engines[role] = engine = compile_graph(library, onnx_path, plan_path, profiles[role], options)
        report(
            f"compiled {engine.path}: {engine.size_bytes:,} bytes in {engine.build_seconds} s, "
            f"for {', '.join(f'SM{each}' for each in engine.compute_capabilities)}"
        )
    text = msgspec.json.format(msgspec.json.encode(engines), indent=2).decode()
    write_text(build_path / RECORD_FILE, text + "\n")
    return (*(engine.path for engine in engines.values()), RECORD_FILE)


def read_engines(build_path: Path) -> dict[str, CompiledEngine]:
    """What `compile_engines` made in a build, by role; empty where it made nothing."""
    path = build_path / RECORD_FILE
    return msgspec.json.decode(path.read_bytes(), type=dict[str, CompiledEngine]) if path.is_file() else {}


def _register_plugins(library: Library, options: CompileOptions) -> str:
    """Make our plugins known to full TensorRT; TensorRT-RTX takes the bodies that their nodes carry.

    Returns:
        Their version, or "" for none.

    Raises:
        MachineError: What makes their kernels is not installed, or was never made for this GPU.
    """
    if library.is_ahead_of_time:
        return ""
    from peagle_trt_plugins.kernel_build import MissingToolError
    from peagle_trt_plugins.kernel_targets import find_architecture
    from peagle_trt_plugins.plugin_checks import PluginError
    from peagle_trt_plugins.ports import VERSION
    from peagle_trt_plugins.tensorrt_plugin import register_tensorrt_plugins

    (capability,) = options.compute_capabilities
    architecture = find_architecture(*divmod(int(capability), 10))
    if architecture is None:
        raise MachineError(
            f"the plugins' kernels were never compiled for SM{capability}",
            hint="use --backend tensorrt-rtx, which does without them, or --backend onnxruntime",
        )
    try:
        register_tensorrt_plugins(architecture)
    except (MissingToolError, PluginError) as error:
        raise MachineError(str(error), hint=error.hint) from error
    return str(VERSION)
