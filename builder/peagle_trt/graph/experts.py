"""A mixture of experts, in two spellings that give the same numbers.

`fused_experts` is what graphs for ONNX Runtime use: its `com.microsoft.MoE` sends each expert the rows that chose it,
and reads its weights once, where the file is mapped: 760 MB of experts took 1 MB of private memory, and 57 MB more for
a prompt of 2048 rows. `gathered_experts` copies the chosen weights out by index and multiplies them row by row;
standard operators only, for backends that have no such kernel, and for few rows: a prompt's rows times their experts
would not fit in memory. Measured on one core, 16 experts of 1440 x 1440, 4 chosen: one row 7 ms against 17, 6 rows 32
against 101, 48 rows 64 against 759; 128 experts of 192 x 512, 8 chosen: 6 rows 5 ms against 11. A row has not quite the
same bits alone and among others, in either, since matrix products block by size; both stay within 1e-6 of the output's
largest entry.

Letters: T rows, E experts, k chosen ones, I width of an expert, H hidden size.
"""

from __future__ import annotations

import numpy as np

from peagle_trt.graph.builder import MICROSOFT, GraphBuilder
from peagle_trt.spec import ExpertsConfig

_INTERLEAVED = 1
"""Rows of gate and up take turns; "CPU MoE only supports interleaved SwiGLU format", ONNX Runtime 1.32."""
_NO_LIMIT = float(np.finfo(np.float32).max)


def fused_experts(builder: GraphBuilder, experts: ExpertsConfig, rows: str, prefix: str) -> str:
    """Router and experts of one layer through ONNX Runtime's own kernel.

    Args:
        builder: Graph under construction.
        experts: The experts.
        rows: [T, H], normalised.
        prefix: `layers.{i}.`, of the weights.

    Returns:
        [T, H].
    """
    clamped = experts.activation == "clamped_swiglu"
    return builder.op(
        "MoE",
        rows,
        router_logits(builder, rows, prefix),
        builder.weight(f"{prefix}experts_gate_up_proj"),
        builder.weight(f"{prefix}experts_gate_up_bias") if experts.has_expert_bias else "",
        builder.weight(f"{prefix}experts_down_proj"),
        builder.weight(f"{prefix}experts_down_bias") if experts.has_expert_bias else "",
        domain=MICROSOFT,
        k=experts.experts_per_token,
        activation_type="swiglu",
        swiglu_fusion=_INTERLEAVED,
        # The kernel computes `(up + beta) * gate * sigmoid(alpha * gate)`.
        activation_alpha=experts.alpha if clamped else 1.0,
        activation_beta=1.0 if clamped else 0.0,
        normalize_routing_weights=int(experts.normalizes_shares),
        swiglu_limit=experts.limit if clamped else _NO_LIMIT,
    )


def gathered_experts(builder: GraphBuilder, experts: ExpertsConfig, rows: str, prefix: str) -> str:
    """The same in standard operators; see `fused_experts`."""
    shares, chosen = choose(builder, experts, router_logits(builder, rows, prefix))
    # [T, 1, H, 1]: one column for every chosen expert of a row.
    column = builder.op("Unsqueeze", rows, _integers(builder, 1, 3))
    gate_up = _project(builder, experts, f"{prefix}experts_gate_up", chosen, column)
    activated = builder.op("Unsqueeze", activate(builder, experts, gate_up), _integers(builder, 3))
    outputs = _project(builder, experts, f"{prefix}experts_down", chosen, activated)
    weighted = builder.op("Mul", outputs, builder.op("Unsqueeze", shares, _integers(builder, 2)))
    return builder.op("ReduceSum", weighted, _integers(builder, 1), keepdims=0)


def router_logits(builder: GraphBuilder, rows: str, prefix: str) -> str:
    """What the router of a layer says about every expert, [T, E]."""
    bias = f"{prefix}router_bias"
    optional = [builder.weight(bias)] if builder.has_weight(bias) else []
    return builder.op("Gemm", rows, builder.weight(f"{prefix}router"), *optional, transB=1)


def choose(builder: GraphBuilder, experts: ExpertsConfig, logits_TE: str) -> tuple[str, str]:
    """Shares and indices of the chosen experts, [T, k] each."""
    count = _integers(builder, experts.experts_per_token)
    if experts.normalizes_shares:
        best, chosen = builder.ops("TopK", logits_TE, count, outputs=2, axis=-1)
        return builder.op("Softmax", best, axis=-1), chosen
    shares, chosen = builder.ops("TopK", builder.op("Softmax", logits_TE, axis=-1), count, outputs=2, axis=-1)
    return shares, chosen


def _project(builder: GraphBuilder, experts: ExpertsConfig, name: str, chosen_Tk: str, columns: str) -> str:
    """The chosen experts' rows of a projection times a column each, [T, k, rows]."""
    weights = builder.op("Gather", builder.weight(f"{name}_proj"), chosen_Tk, axis=0)
    projected = builder.op("Squeeze", builder.op("MatMul", weights, columns), _integers(builder, 3))
    if not experts.has_expert_bias:
        return projected
    return builder.op("Add", projected, builder.op("Gather", builder.weight(f"{name}_bias"), chosen_Tk, axis=0))


def activate(builder: GraphBuilder, experts: ExpertsConfig, gate_up: str) -> str:
    """The experts' activation, [T, k, 2I] with gate and up in turns -> [T, k, I]."""
    pairs = builder.op("Reshape", gate_up, _integers(builder, 0, 0, experts.intermediate_size, 2))
    halves = builder.ops("Split", pairs, outputs=2, axis=3, num_outputs=2)
    gate, up = (builder.op("Squeeze", half, _integers(builder, 3)) for half in halves)
    if experts.activation == "swiglu":
        return builder.op("Mul", up, builder.op("Mul", gate, builder.op("Sigmoid", gate)))
    low, high = (_number(builder, sign * experts.limit) for sign in (-1.0, 1.0))
    gate, up = builder.op("Min", gate, high), builder.op("Clip", up, low, high)
    slope = builder.op("Sigmoid", builder.op("Mul", gate, _number(builder, experts.alpha)))
    return builder.op("Mul", builder.op("Add", up, _number(builder, 1.0)), builder.op("Mul", gate, slope))


def _integers(builder: GraphBuilder, *values: int) -> str:
    return builder.constant(np.array(values, np.int64))


def _number(builder: GraphBuilder, value: float) -> str:
    return builder.numbers(np.array(value, np.float32))
