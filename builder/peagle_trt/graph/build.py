"""Writes every graph of a build: target and drafter, once for each batch bucket."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from peagle_trt.graph.drafter import drafter_graph
from peagle_trt.graph.sequential_drafter import sequential_drafter_graph
from peagle_trt.graph.target import has_step_graph, step_graph, target_graph
from peagle_trt.spec import BuildSpec, DrafterConfig, GraphShapes, TargetConfig, TensorSpec
from peagle_trt.spec.build import MAX_DRAFT_TOKENS

if TYPE_CHECKING:
    import onnx

# A step that starts at the last position writes up to 2K rows past it, which nobody reads.
CACHE_MARGIN = 2 * MAX_DRAFT_TOKENS


def graph_shapes(spec: BuildSpec) -> GraphShapes:
    """Limits of the engines that a build asks for."""
    return GraphShapes(
        draft_tokens=spec.draft_tokens,
        max_draft_tokens=MAX_DRAFT_TOKENS,
        max_batch_size=spec.max_batch_size,
        max_sequence_length=spec.max_sequence_length,
        cache_capacity=spec.max_sequence_length + CACHE_MARGIN,
    )


def build_graphs(
    spec: BuildSpec,
    target: TargetConfig,
    drafter: DrafterConfig,
    stored_target: Mapping[str, TensorSpec],
    stored_drafter: Mapping[str, TensorSpec],
    engine_path: Path,
) -> tuple[GraphShapes, dict[str, str]]:
    """Write `target.b{G}.onnx`, `drafter.b{G}.onnx` and `target.step.onnx` beside the weights they point at.

    Args:
        spec: The build.
        target: The target, whose `aux_layer_ids` are the drafter's.
        drafter: The drafter.
        stored_target: The target's weights as written.
        stored_drafter: The drafter's weights as written; what it shares points into the target's file.
        engine_path: Folder that holds the weights.

    Returns:
        The limits, and role to file name.
    """
    shapes = graph_shapes(spec)
    capacity = shapes.cache_capacity
    weights = drafter_weights(stored_target, stored_drafter)
    graphs: dict[str, str] = {}
    for groups in target_buckets(spec.max_batch_size):
        model = target_graph(target, stored_target, num_groups=groups, cache_capacity=capacity)
        graphs[f"target.b{groups}"] = _write(model, engine_path / f"target.b{groups}.onnx")
    if spec.max_batch_size > 1 and has_step_graph(stored_target):
        model = step_graph(target, stored_target, cache_capacity=capacity)
        graphs["target.step"] = _write(model, engine_path / "target.step.onnx")
    for groups in drafter_buckets(spec.max_batch_size):
        write_drafter = drafter_graph if drafter.is_parallel else sequential_drafter_graph
        model = write_drafter(drafter, weights, num_groups=groups, cache_capacity=capacity)
        graphs[f"drafter.b{groups}"] = _write(model, engine_path / f"drafter.b{groups}.onnx")
    return shapes, graphs


def target_buckets(max_batch_size: int) -> list[int]:
    """Group counts of the target's graphs: every loaded graph holds its own packed copy of the weights, and a group
    without a sequence costs next to nothing, so there are two at most, beside the step graph.
    """
    return sorted({1, max_batch_size})


def drafter_buckets(max_batch_size: int) -> list[int]:
    """Group counts of the drafter's graphs: it is small, and a group without a sequence costs as much as one with."""
    powers = {2**exponent for exponent in range(max_batch_size.bit_length())}
    return sorted({*powers, max_batch_size})


def drafter_weights(
    stored_target: Mapping[str, TensorSpec], stored_drafter: Mapping[str, TensorSpec]
) -> dict[str, TensorSpec]:
    """The drafter's weights, with the target's embedding and output layer where the drafter has none of its own."""
    embedding = stored_target["embed_tokens"]
    shared = {"embed_tokens": embedding}
    if "lm_head" not in stored_drafter:
        # With whatever stands behind it where it is quantized.
        parts = {name: spec for name, spec in stored_target.items() if name.split(".")[0] == "lm_head"}
        shared |= parts or {"lm_head": embedding}
    return shared | dict(stored_drafter)


def _write(model: onnx.ModelProto, path: Path) -> str:
    path.write_bytes(model.SerializeToString(deterministic=True))
    return path.name
