"""Writes the two graphs of a build: one target and one drafter, for every number of sequences."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from peagle_trt.graph.batched.drafter import drafter_graph
from peagle_trt.graph.batched.target import target_graph
from peagle_trt.graph.build import drafter_weights, graph_shapes
from peagle_trt.graph.builder import Element
from peagle_trt.spec import BuildSpec, DrafterConfig, GraphShapes, TargetConfig, TensorSpec

if TYPE_CHECKING:
    import onnx

GRAPH_FILES = {"target": "target.onnx", "drafter": "drafter.onnx"}


def build_batched_graphs(
    spec: BuildSpec,
    target: TargetConfig,
    drafter: DrafterConfig,
    stored_target: Mapping[str, TensorSpec],
    stored_drafter: Mapping[str, TensorSpec],
    engine_path: Path,
    *,
    element: Element,
    uses_plugins: bool = False,
) -> tuple[GraphShapes, dict[str, str]]:
    """Write `target.onnx` and `drafter.onnx` beside the weights they point at.

    Args:
        spec: The build.
        target: The target, whose `aux_layer_ids` are the drafter's.
        drafter: The drafter.
        stored_target: The target's weights as written.
        stored_drafter: The drafter's weights as written; what it shares points into the target's file.
        engine_path: Folder that holds the weights.
        element: What both graphs compute in.
        uses_plugins: Whether the runtime has our plugins.

    Returns:
        The limits, and role to file name.
    """
    shapes = graph_shapes(spec)
    capacity = shapes.cache_capacity
    _write(target_graph(target, stored_target, element=element, cache_capacity=capacity), engine_path, "target")
    weights = drafter_weights(stored_target, stored_drafter)
    model = drafter_graph(drafter, weights, element=element, cache_capacity=capacity, uses_plugins=uses_plugins)
    _write(model, engine_path, "drafter")
    return shapes, dict(GRAPH_FILES)


def _write(model: onnx.ModelProto, folder: Path, role: str) -> None:
    (folder / GRAPH_FILES[role]).write_bytes(model.SerializeToString(deterministic=True))
