"""A mixture of experts for TensorRT: chosen matrices for few rows, a loop over all experts for many.

TensorRT has a MoE layer without the clamped SwiGLU, and TensorRT-RTX compiles none. `docs/experts.md` says what each
form costs and what was compiled.

Letters: T rows, E experts, k chosen ones, I width of an expert, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from peagle_trt.graph.batched.experts_stacks import (
    Stack,
    dense_stack,
    gathered_stack,
    integers,
    mxfp4_stack,
    nvfp4_stack,
)
from peagle_trt.graph.builder import GraphBuilder, Value
from peagle_trt.graph.experts import choose
from peagle_trt.graph.looped_experts import scattered_stacks
from peagle_trt.quant.in_place import BLOCKS, expert_matrix
from peagle_trt.quant.packing import BLOCK_SCALES
from peagle_trt.spec import ExpertsConfig


def gathered_experts(builder: GraphBuilder, config: ExpertsConfig, rows: str, prefix: str) -> str:
    """Router and experts of one layer, however they are stored; every row is multiplied by the matrices it chose.

    Args:
        builder: Graph under construction.
        config: The experts.
        rows: [T, H], normalised, in the type that the graph computes in.
        prefix: `layers.{i}.`, of the weights.

    Returns:
        [T, H], in the same type.
    """
    routed = _route(builder, config, rows, prefix)
    return _in_element(builder, _gathered(builder, _open_layer(builder, config, prefix), routed))


def switched_experts(
    builder: GraphBuilder, config: ExpertsConfig, rows: str, prefix: str, *, max_gathered_rows: int
) -> str:
    """The same, but more rows than `max_gathered_rows` all go through every expert in turn.

    A loop in the graph keeps an engine from being captured as one CUDA graph, for few rows too.
    """
    layer, routed = _open_layer(builder, config, prefix), _route(builder, config, rows, prefix)
    count = builder.op("Shape", rows, end=1)
    is_few = builder.op("Less", count, integers(builder, max_gathered_rows + 1))
    nothing, all_turns = integers(builder, 0), integers(builder, config.num_experts)
    # The loop takes no turn where rows are few, and no row is gathered where they are many. There is no `If`, for
    # TensorRT-RTX 1.7 fails on a loop inside a branch ("mScopedOp2Scopes").
    few, turns = builder.op("Where", is_few, count, nothing), builder.op("Where", is_few, nothing, all_turns)
    looped = _looped(builder, layer, routed, builder.op("Squeeze", turns))
    gathered = _gathered(builder, layer, routed.first(builder, few))
    together = builder.op("Concat", gathered, builder.op("Slice", looped, few, count, nothing), axis=0)
    return _in_element(builder, together)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """One layer's experts.

    Attributes:
        config: The experts.
        gate_up: One stack with rows of gate and up in turns, or gate and up apart.
        down: The way back.
        prefix: `layers.{i}.`, of the biases.
    """

    config: ExpertsConfig
    gate_up: tuple[Stack, ...]
    down: Stack
    prefix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Routed:
    """Rows and where they go: [T, H]; shares [T, k] float32; chosen experts [T, k] int64."""

    rows: str
    shares: str
    chosen: str

    def first(self, builder: GraphBuilder, count: str) -> _Routed:
        """The first rows alone."""
        zero = integers(builder, 0)
        rows, shares, chosen = (
            builder.op("Slice", value, zero, count, zero) for value in (self.rows, self.shares, self.chosen)
        )
        return _Routed(rows=rows, shares=shares, chosen=chosen)


def _route(builder: GraphBuilder, config: ExpertsConfig, rows: str, prefix: str) -> _Routed:
    shares, chosen = choose(builder, config, _router_logits(builder, rows, prefix))
    return _Routed(rows=rows, shares=shares, chosen=chosen)


def _open_layer(builder: GraphBuilder, config: ExpertsConfig, prefix: str) -> _Layer:
    if builder.has_weight(prefix + expert_matrix(0, "gate")):
        apart = scattered_stacks(builder, config.num_experts, prefix)
        gate, up, down = (gathered_stack(builder, apart[part]) for part in ("gate", "up", "down"))
        return _Layer(config=config, gate_up=(gate, up), down=down, prefix=prefix)
    gate_up, back = (_open_stack(builder, f"{prefix}experts_{part}_proj") for part in ("gate_up", "down"))
    return _Layer(config=config, gate_up=(gate_up,), down=back, prefix=prefix)


def _open_stack(builder: GraphBuilder, name: str) -> Stack:
    if builder.has_weight(f"{name}{BLOCKS}"):
        return mxfp4_stack(builder, name)
    if builder.has_weight(f"{name}{BLOCK_SCALES}"):
        return nvfp4_stack(builder, name)
    return dense_stack(builder, name)


def _router_logits(builder: GraphBuilder, rows: str, prefix: str) -> str:
    """[T, E] float32, computed in it: a rounded logit would choose another expert."""
    weight = builder.op("Transpose", _float_weight(builder, f"{prefix}router"), perm=[1, 0])
    logits = builder.op("MatMul", _as_float(builder, rows), weight)
    bias = f"{prefix}router_bias"
    return builder.op("Add", logits, _float_weight(builder, bias)) if builder.has_weight(bias) else logits


def _gathered(builder: GraphBuilder, layer: _Layer, routed: _Routed) -> str:
    """Every row times the matrices it chose, [T, H] float32; what nobody chose is never read."""
    columns = builder.op("Unsqueeze", _as_float(builder, routed.rows), integers(builder, 1))
    products = [stack.product(builder, routed.chosen, columns) for stack in layer.gate_up]
    products[0] = _add_chosen_bias(builder, layer, "gate_up", products[0], routed.chosen)
    activated = _activate(builder, layer.config, *_gate_and_up(builder, layer.config, products))
    outputs = layer.down.product(builder, routed.chosen, activated)
    outputs = _add_chosen_bias(builder, layer, "down", outputs, routed.chosen)
    weighted = builder.op("Mul", outputs, builder.op("Unsqueeze", routed.shares, integers(builder, 2)))
    return builder.op("ReduceSum", weighted, integers(builder, 1), keepdims=0)


def _looped(builder: GraphBuilder, layer: _Layer, routed: _Routed, turns: str) -> str:
    """All rows times every expert in turn, [T, H] float32; the share of one that a row did not choose is 0."""
    shares_ET = _shares_of_all(builder, layer.config, routed)
    rows = _as_float(builder, routed.rows)
    start = builder.op("Mul", rows, _number(builder, 0))
    turn, going, total = (builder.unique(name) for name in ("turn", "going", "total"))

    def emit() -> Sequence[Value]:
        expert = builder.op("Reshape", turn, integers(builder, 1, 1))
        output = _run_expert(builder, layer, expert, routed.rows)
        share = builder.op("Reshape", builder.op("Gather", shares_ET, turn, axis=0), integers(builder, -1, 1))
        added = builder.op("Add", total, builder.op("Mul", output, share))
        return ((builder.op("Identity", going), "BOOL", []), (added, "FLOAT", ["T", "H"]))

    inputs: list[Value] = [(turn, "INT64", []), (going, "BOOL", []), (total, "FLOAT", ["T", "H"])]
    body = builder.subgraph(f"{layer.prefix}expert", inputs, emit)
    return builder.op("Loop", turns, builder.constant(np.array(True)), start, body=body)


def _run_expert(builder: GraphBuilder, layer: _Layer, expert: str, rows: str) -> str:
    """What one expert makes of all rows, [T, H] float32."""
    products = [_times(builder, rows, stack.matrix(builder, expert)) for stack in layer.gate_up]
    products[0] = _add_chosen_bias(builder, layer, "gate_up", products[0], expert)
    activated = _activate(builder, layer.config, *_gate_and_up(builder, layer.config, products))
    columns = builder.op("Squeeze", activated, integers(builder, 1))
    columns = columns if builder.element == "FLOAT" else builder.cast(columns, builder.element)
    output = _add_chosen_bias(
        builder, layer, "down", _times(builder, columns, layer.down.matrix(builder, expert)), expert
    )
    return builder.op("Squeeze", output, integers(builder, 1))


def _times(builder: GraphBuilder, rows: str, matrix: str) -> str:
    """[T, 1, rows of the matrix] float32."""
    product = builder.op("MatMul", rows, builder.op("Transpose", matrix, perm=[1, 0]))
    return builder.op("Unsqueeze", _as_float(builder, product), integers(builder, 1))


def _shares_of_all(builder: GraphBuilder, config: ExpertsConfig, routed: _Routed) -> str:
    """The share that every row gives every expert, [E, T] float32."""
    numbers = builder.constant(np.arange(config.num_experts, dtype=np.int64).reshape(1, 1, -1))
    is_chosen = builder.op("Equal", builder.op("Unsqueeze", routed.chosen, integers(builder, 2)), numbers)
    shares = builder.op("Unsqueeze", routed.shares, integers(builder, 2))
    given = builder.op("Mul", builder.cast(is_chosen, "FLOAT"), shares)
    return builder.op("Transpose", builder.op("ReduceSum", given, integers(builder, 1), keepdims=0), perm=[1, 0])


def _add_chosen_bias(builder: GraphBuilder, layer: _Layer, part: str, product: str, chosen: str) -> str:
    if not layer.config.has_expert_bias:
        return product
    bias = builder.op("Gather", builder.weight(f"{layer.prefix}experts_{part}_bias"), chosen, axis=0)
    return builder.op("Add", product, _as_float(builder, bias))


def _gate_and_up(builder: GraphBuilder, config: ExpertsConfig, products: Sequence[str]) -> tuple[str, str]:
    """[T, k, I] each."""
    if len(products) == 2:
        return products[0], products[1]
    pairs = builder.op("Reshape", products[0], integers(builder, 0, 0, config.intermediate_size, 2))
    halves = builder.ops("Split", pairs, outputs=2, axis=3, num_outputs=2)
    gate, up = (builder.op("Squeeze", half, integers(builder, 3)) for half in halves)
    return gate, up


def _activate(builder: GraphBuilder, config: ExpertsConfig, gate: str, up: str) -> str:
    """The experts' activation in float32."""
    if config.activation == "swiglu":
        return builder.op("Mul", up, builder.op("Mul", gate, builder.op("Sigmoid", gate)))
    low, high = (_number(builder, sign * config.limit) for sign in (-1.0, 1.0))
    gate, up = builder.op("Min", gate, high), builder.op("Clip", up, low, high)
    slope = builder.op("Sigmoid", builder.op("Mul", gate, _number(builder, config.alpha)))
    return builder.op("Mul", builder.op("Add", up, _number(builder, 1.0)), builder.op("Mul", gate, slope))


def _float_weight(builder: GraphBuilder, name: str) -> str:
    """A stored weight in float32."""
    raw = builder.raw_weight(name)
    return raw if builder.stored(name).dtype == "F32" else builder.cast(raw, "FLOAT")


def _as_float(builder: GraphBuilder, values: str) -> str:
    return values if builder.element == "FLOAT" else builder.cast(values, "FLOAT")


def _in_element(builder: GraphBuilder, values: str) -> str:
    return values if builder.element == "FLOAT" else builder.cast(values, builder.element)


def _number(builder: GraphBuilder, value: float) -> str:
    return builder.constant(np.array(value, np.float32))
