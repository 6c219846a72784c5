"""Compiles an ONNX graph into a TensorRT engine, which is written as it is made."""

from __future__ import annotations

import hashlib
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from peagle_trt.engine.tensorrt.interruption import holding_signals, make_monitor
from peagle_trt.engine.tensorrt.library import Library, MessageLog
from peagle_trt.engine.tensorrt.network_check import check_network
from peagle_trt.errors import PeagleError
from peagle_trt.files import naming_os_errors
from peagle_trt.spec import CompiledEngine, EngineProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions:
    """How to compile.

    Attributes:
        compute_capabilities: GPUs to compile for, such as "120"; empty for the one in this machine.
        timing_cache_path: Where measured kernels are kept from one build to the next, or None.
        plugin_version: Version of the plugins that are registered, or "" for none.
    """

    compute_capabilities: tuple[str, ...] = ()
    timing_cache_path: Path | None = None
    plugin_version: str = ""


def compile_graph(
    library: Library,
    onnx_path: Path,
    plan_path: Path,
    profiles: Sequence[EngineProfile],
    options: CompileOptions,
) -> CompiledEngine:
    """Compile one graph.

    Args:
        library: The compiler.
        onnx_path: The graph; its weights lie beside it.
        plan_path: File to write; its name goes into the record, relative to the build's folder.
        profiles: Ranges of the graph's free dimensions, by their names in the graph.
        options: How.

    Returns:
        What was made, and what it took.

    Raises:
        PeagleError: TensorRT refused the graph, or understood it differently than it was written.
        MachineError: The disk is full, or the folder cannot be written.
    """
    trt, log, begin = library.module, MessageLog(library, needs_gpu=not library.is_ahead_of_time), time.monotonic()
    builder = trt.Builder(log.logger)
    network = builder.create_network(_network_flags(trt, options))
    _parse(trt, network, log, onnx_path)
    check_network(library, network, onnx_path.name)
    config = builder.create_builder_config()
    _set_capabilities(trt, config, options, log)
    _add_profiles(builder, config, network, profiles)
    log.require_clean(f"set up `{onnx_path.name}`")
    timing_cache = _use_timing_cache(config, options)
    with holding_signals() as held:
        config.progress_monitor = make_monitor(trt, held)
        size_bytes, digest = _build(trt, builder, network, config, log, onnx_path.name, plan_path)
    if timing_cache is not None and options.timing_cache_path is not None:
        options.timing_cache_path.write_bytes(bytes(timing_cache.serialize()))
    return CompiledEngine(
        path=f"{plan_path.parent.name}/{plan_path.name}",
        compiler=library.backend,
        compiler_version=library.version,
        compute_capabilities=options.compute_capabilities,
        profiles=tuple(profiles),
        plugin_version=options.plugin_version,
        size_bytes=size_bytes,
        sha256=digest,
        build_seconds=round(time.monotonic() - begin, 1),
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
    )


def _network_flags(trt: Any, options: CompileOptions) -> int:
    flags = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    if options.plugin_version:
        # The kernel then travels inside the engine; without the flag the engine would call back into Python.
        flags |= 1 << int(trt.NetworkDefinitionCreationFlag.PREFER_AOT_PYTHON_PLUGINS)
    return flags


def _parse(trt: Any, network: Any, log: MessageLog, onnx_path: Path) -> None:
    parser = trt.OnnxParser(network, log.logger)
    if not parser.parse_from_file(str(onnx_path)):
        found = "; ".join(log.real_part(parser.get_error(index).desc()) for index in range(parser.num_errors))
        log.errors.clear()
        raise PeagleError(
            f"TensorRT cannot read `{onnx_path.name}`: {found}", hint="this is a fault of the graph, please report it"
        )
    log.require_clean(f"read `{onnx_path.name}`")


def _set_capabilities(trt: Any, config: Any, options: CompileOptions, log: MessageLog) -> None:
    if not options.compute_capabilities:
        return
    config.num_compute_capabilities = len(options.compute_capabilities)
    for index, capability in enumerate(options.compute_capabilities):
        if not config.set_compute_capability(getattr(trt.ComputeCapability, f"SM{capability}"), index):
            raise log.fail(f"compile for SM{capability}")


def _add_profiles(builder: Any, config: Any, network: Any, profiles: Sequence[EngineProfile]) -> None:
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    for profile in profiles:
        made = builder.create_optimization_profile()
        for tensor in inputs:
            made.set_shape(tensor.name, *_ranges(tensor, profile))
        config.add_optimization_profile(made)


def _ranges(tensor: Any, profile: EngineProfile) -> list[tuple[int, ...]]:
    """Smallest, usual and largest shape of an input, whose free dimensions have names."""
    sizes = [
        profile.dims[tensor.get_dimension_name(axis)] if size < 0 else (size, size, size)
        for axis, size in enumerate(tensor.shape)
    ]
    return [tuple(each[index] for each in sizes) for index in range(3)]


def _use_timing_cache(config: Any, options: CompileOptions) -> Any:
    if options.timing_cache_path is None:
        return None
    path = options.timing_cache_path
    cache = config.create_timing_cache(path.read_bytes() if path.exists() else b"")
    # A cache of another GPU or version is left out rather than an error: it saves time and changes nothing else.
    return cache if config.set_timing_cache(cache, ignore_mismatch=False) else None


def _build(
    trt: Any, builder: Any, network: Any, config: Any, log: MessageLog, name: str, plan_path: Path
) -> tuple[int, str]:
    """Compile into a file; returns its size and digest."""
    with naming_os_errors(plan_path), plan_path.open("wb") as file:
        writer = _make_writer(trt, file)
        is_built = builder.build_serialized_network_to_stream(network, config, writer)
        # TensorRT passes over a write that failed, and says that it built an engine of which a part is missing.
        if writer.failure is not None:
            raise writer.failure
        # An error is an error even where an engine came out: without what it complains about, the engine is another.
        log.require_clean(f"compile `{name}`")
        if not is_built:
            raise log.fail(f"compile `{name}`")
    return writer.size_bytes, writer.digest.hexdigest()


def _make_writer(trt: Any, file: IO[bytes]) -> Any:
    base: type[Any] = trt.IStreamWriter

    class Writer(base):  # type: ignore[misc]
        """Writes an engine as it comes, so that it is never in memory twice."""

        def __init__(self) -> None:
            base.__init__(self)
            self.size_bytes = 0
            self.digest = hashlib.sha256()
            self.failure: OSError | None = None

        def write(self, data: bytes) -> int:
            if self.failure is not None:
                return 0
            self.digest.update(data)
            self.size_bytes += len(data)
            try:
                return file.write(data)
            except OSError as error:
                # Raised through TensorRT it would come out as lines on stderr.
                self.failure = error
                return 0

    return Writer()
