"""Blocks that target and drafter share. Rows are flat: [T, width]."""

from __future__ import annotations

import numpy as np

from peagle_trt.graph.attention import Attention
from peagle_trt.graph.builder import MICROSOFT, GraphBuilder
from peagle_trt.graph.experts import fused_experts
from peagle_trt.graph.integers import integer_linear, is_integer
from peagle_trt.graph.looped_experts import has_experts_in_place, looped_experts
from peagle_trt.spec import ExpertsConfig


def linear(builder: GraphBuilder, rows: str, weight: str, bias: str = "", *, output: str | None = None) -> str:
    """`rows @ weight.T + bias`; the bias only where it is stored. Weights keep the checkpoint's [out, in] layout.

    The one place that looks at how a matrix is stored.
    """
    if is_integer(builder, weight):
        return integer_linear(builder, rows, weight, bias, output=output)
    optional = [builder.weight(bias)] if bias and builder.has_weight(bias) else []
    if not builder.is_cut(weight):
        return builder.op("Gemm", rows, builder.weight(weight), *optional, transB=1, output=output)
    parts = [builder.op("Gemm", rows, block, transB=1) for block in builder.weight_blocks(weight)]
    if not optional:
        return builder.op("Concat", *parts, axis=-1, output=output)
    return builder.op("Add", builder.op("Concat", *parts, axis=-1), optional[0], output=output)


def rms_norm(builder: GraphBuilder, rows: str, weight: str, epsilon: float) -> str:
    """RMSNorm over the last axis."""
    return builder.op("RMSNormalization", rows, builder.weight(weight), epsilon=epsilon)


def add_and_norm(builder: GraphBuilder, rows: str, residual: str, weight: str, epsilon: float) -> tuple[str, str]:
    """`norm(rows + residual)` and the sum itself, in one fused node."""
    normed, _, _, total = builder.ops(
        "SkipSimplifiedLayerNormalization",
        rows,
        residual,
        builder.weight(weight),
        outputs=[builder.unique("normed"), "", "", builder.unique("stream")],
        domain=MICROSOFT,
        epsilon=epsilon,
    )
    return normed, total


def swiglu(builder: GraphBuilder, rows: str, prefix: str) -> str:
    """`down(silu(gate(x)) * up(x))`, gate and up in one product where they are stored as one matrix."""
    gate, up = _gate_and_up(builder, rows, prefix)
    activated = builder.op("Mul", builder.op("Mul", gate, builder.op("Sigmoid", gate)), up)
    return linear(builder, activated, f"{prefix}down_proj", f"{prefix}down_bias")


def packed_heads(builder: GraphBuilder, rows: str, prefix: str) -> str:
    """Queries, keys and values side by side, from one matrix or from the checkpoint's three."""
    if builder.has_weight(f"{prefix}qkv_proj"):
        return linear(builder, rows, f"{prefix}qkv_proj", f"{prefix}qkv_bias")
    parts = [linear(builder, rows, f"{prefix}{part}_proj", f"{prefix}{part}_bias") for part in "qkv"]
    return builder.op("Concat", *parts, axis=-1)


def decoder_layer(
    builder: GraphBuilder,
    attention: Attention,
    layer: int,
    attention_input: str,
    residual: str,
    epsilon: float,
    *,
    window: int = 0,
    experts: ExpertsConfig | None = None,
) -> tuple[str, str]:
    """One pre-norm layer.

    Args:
        builder: Graph under construction.
        attention: Emits the attention of this model.
        layer: Index of the layer.
        attention_input: Normalised rows the projections read; the drafter's layer 0 reads 2H columns.
        residual: Stream the attention's output is added to.
        epsilon: Epsilon of the RMSNorms.
        window: Tokens a row looks back at, itself included; 0 for all.
        experts: The experts in place of the SwiGLU, or None.

    Returns:
        The MLP's output and the stream it is to be added to; the next norm adds them.
    """
    prefix = f"layers.{layer}."
    packed = packed_heads(builder, attention_input, prefix)
    sinks = builder.weight(f"{prefix}sinks") if builder.has_weight(f"{prefix}sinks") else ""
    mixed = attention.emit(layer, packed, window=window, sinks=sinks)
    attended = linear(builder, mixed, f"{prefix}o_proj", f"{prefix}o_bias")
    normed, stream = add_and_norm(builder, attended, residual, f"{prefix}post_attention_norm", epsilon)
    if experts is not None:
        mix = looped_experts if has_experts_in_place(builder, prefix) else fused_experts
        return mix(builder, experts, normed, prefix), stream
    return swiglu(builder, normed, prefix), stream


def flatten(builder: GraphBuilder, values: str, width: int) -> str:
    """[B, W, width] -> [B * W, width]."""
    return builder.op("Reshape", values, builder.constant(np.array([-1, width], np.int64)))


def _gate_and_up(builder: GraphBuilder, rows: str, prefix: str) -> tuple[str, str]:
    if not builder.has_weight(f"{prefix}gate_up_proj"):
        gate, up = (linear(builder, rows, f"{prefix}{part}_proj", f"{prefix}{part}_bias") for part in ("gate", "up"))
        return gate, up
    both = linear(builder, rows, f"{prefix}gate_up_proj", f"{prefix}gate_up_bias")
    gate, up = builder.ops("Split", both, outputs=2, axis=-1, num_outputs=2)
    return gate, up
