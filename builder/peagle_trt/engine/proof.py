"""Runs the graphs that a TensorRT backend compiles in ONNX Runtime and in float32, where there is no GPU to run it on.

The graphs are written once more from the same weights by the same code, with float32 where the compiled ones have half
of it. That proves graphs, weights and the passes over them; not what the compiler made of them.
"""

from __future__ import annotations

from pathlib import Path

from peagle_trt.engine.batched_engine import BatchedEngine
from peagle_trt.engine.batched_onnxruntime import GraphSource, OnnxRuntimePasses
from peagle_trt.spec import EngineManifest


def open_proof(build_path: Path, manifest: EngineManifest, *, num_threads: int | None = None) -> BatchedEngine:
    """The graphs of a build in float32, on the CPU.

    Args:
        build_path: Folder of the build.
        manifest: Its manifest.
        num_threads: Threads; None takes every core this process may use.

    Raises:
        MachineError: ONNX Runtime cannot load a graph.
    """
    return BatchedEngine(
        build_path,
        manifest,
        OnnxRuntimePasses(
            lambda: target_source(build_path, manifest),
            lambda: drafter_source(build_path, manifest),
            manifest,
            num_threads=num_threads,
        ),
    )


def target_source(build_path: Path, manifest: EngineManifest) -> GraphSource:
    """The target's graph in float32."""
    from peagle_trt.graph.batched.target import target_graph
    from peagle_trt.quant import open_stored

    folder = build_path / "engine"
    model = target_graph(
        manifest.target,
        open_stored(folder / "target.safetensors"),
        element="FLOAT",
        cache_capacity=manifest.shapes.cache_capacity,
    )
    return GraphSource(model=model.SerializeToString(deterministic=True), weights_path=folder)


def drafter_source(build_path: Path, manifest: EngineManifest) -> GraphSource:
    """The drafter's graph in float32."""
    from peagle_trt.graph.batched.drafter import drafter_graph
    from peagle_trt.graph.build import drafter_weights
    from peagle_trt.quant import open_stored

    folder = build_path / "engine"
    weights = drafter_weights(open_stored(folder / "target.safetensors"), open_stored(folder / "drafter.safetensors"))
    model = drafter_graph(
        manifest.drafter,
        weights,
        element="FLOAT",
        cache_capacity=manifest.shapes.cache_capacity,
        uses_plugins=manifest.backend == "tensorrt",
    )
    return GraphSource(model=model.SerializeToString(deterministic=True), weights_path=folder)
