"""Blocks that target and drafter share. Rows are dense: [B, S, width], in the type that the graph computes in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from peagle_trt.graph.attention import HeadShape
from peagle_trt.graph.batched import quantized
from peagle_trt.graph.batched.attention import BatchedAttention
from peagle_trt.graph.batched.experts_layer import gathered_experts
from peagle_trt.graph.builder import GraphBuilder
from peagle_trt.spec import ExpertsConfig

MixExperts = Callable[[GraphBuilder, ExpertsConfig, str, str], str]
"""Emits the experts of one layer: builder, experts, rows [T, H], `layers.{i}.` to [T, H]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """What all layers of a model have in common.

    Attributes:
        epsilon: Epsilon of the RMSNorms.
        experts: The experts in place of each SwiGLU, or None.
        mix_experts: Emits them.
    """

    epsilon: float
    experts: ExpertsConfig | None = None
    mix_experts: MixExperts = gathered_experts


def linear(builder: GraphBuilder, rows: str, weight: str, bias: str = "") -> str:
    """`rows @ weight.T + bias`; the bias only where it is stored. Weights keep the checkpoint's [out, in] layout.

    The one place that looks at how a matrix is stored.
    """
    if quantized.is_quantized(builder, weight):
        return quantized.linear(builder, rows, weight, bias)
    transposed = builder.op("Transpose", builder.weight(weight), perm=[1, 0])
    product = builder.op("MatMul", rows, transposed)
    return builder.op("Add", product, builder.weight(bias)) if bias and builder.has_weight(bias) else product


def rms_norm(builder: GraphBuilder, rows: str, weight: str, epsilon: float) -> str:
    """RMSNorm over the last axis, computed in float32."""
    return builder.op("RMSNormalization", rows, builder.weight(weight), epsilon=epsilon)


def decoder_layer(
    builder: GraphBuilder,
    attention: BatchedAttention,
    kind: LayerKind,
    layer: int,
    attention_input: str,
    stream: str,
    *,
    window: int = 0,
) -> str:
    """One pre-norm layer.

    Args:
        builder: Graph under construction.
        attention: Emits the attention of this model.
        kind: What all layers have in common.
        layer: Index of the layer.
        attention_input: Normalised rows the projections read; the drafter's layer 0 reads 2H columns.
        stream: What the layer's outputs are added to, [B, S, H].
        window: Tokens a row looks back at, itself included; 0 for all.

    Returns:
        The stream after the layer.
    """
    prefix = f"layers.{layer}."
    parts = head_parts(builder, attention.heads, attention_input, prefix)
    mixed = attention.emit(layer, parts, window=window, sinks=f"{prefix}sinks")
    stream = builder.op("Add", stream, linear(builder, mixed, f"{prefix}o_proj", f"{prefix}o_bias"))
    normed = rms_norm(builder, stream, f"{prefix}post_attention_norm", kind.epsilon)
    if kind.experts is None:
        return builder.op("Add", stream, swiglu(builder, normed, prefix))
    flat = builder.op(
        "Reshape", normed, _integers(builder, -1, builder.stored(f"{prefix}post_attention_norm").shape[0])
    )
    output = kind.mix_experts(builder, kind.experts, flat, prefix)
    return builder.op("Add", stream, builder.op("Reshape", output, builder.op("Shape", stream)))


def head_parts(builder: GraphBuilder, heads: HeadShape, rows: str, prefix: str) -> list[str]:
    """Queries, keys and values, [B, S, heads * D] each, from one matrix or from the checkpoint's three."""
    if not builder.has_weight(f"{prefix}qkv_proj"):
        return [linear(builder, rows, f"{prefix}{part}_proj", f"{prefix}{part}_bias") for part in "qkv"]
    packed = linear(builder, rows, f"{prefix}qkv_proj", f"{prefix}qkv_bias")
    return builder.ops("Split", packed, _integers(builder, *heads.widths), outputs=3, axis=-1)


def swiglu(builder: GraphBuilder, rows: str, prefix: str) -> str:
    """`down(silu(gate(x)) * up(x))`, gate and up in one product where they are stored as one matrix."""
    gate, up = _gate_and_up(builder, rows, prefix)
    activated = builder.op("Mul", builder.op("Mul", gate, builder.op("Sigmoid", gate)), up)
    return linear(builder, activated, f"{prefix}down_proj", f"{prefix}down_bias")


def picked_rows(builder: GraphBuilder, rows: str, indices: str) -> str:
    """Rows of each sequence by number; [B, S, width] and [B, L] int32 to [B, L, width]."""
    numbers = builder.cast(builder.op("Unsqueeze", indices, _integers(builder, 2)), "INT64")
    return builder.op("GatherND", rows, numbers, batch_dims=1)


def _gate_and_up(builder: GraphBuilder, rows: str, prefix: str) -> tuple[str, str]:
    if not builder.has_weight(f"{prefix}gate_up_proj"):
        gate, up = (linear(builder, rows, f"{prefix}{part}_proj", f"{prefix}{part}_bias") for part in ("gate", "up"))
        return gate, up
    both = linear(builder, rows, f"{prefix}gate_up_proj", f"{prefix}gate_up_bias")
    gate, up = builder.ops("Split", both, outputs=2, axis=-1, num_outputs=2)
    return gate, up


def _integers(builder: GraphBuilder, *values: int) -> str:
    return builder.constant(np.array(values, np.int64))
