"""Graph of the target: rows of B sequences in, logits of chosen rows and auxiliary hidden states out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from peagle_trt.graph.batched.attention import BatchedAttention
from peagle_trt.graph.batched.experts_layer import gathered_experts
from peagle_trt.graph.batched.greedy import pick_greedily
from peagle_trt.graph.batched.layers import LayerKind, MixExperts, decoder_layer, linear, picked_rows, rms_norm
from peagle_trt.graph.batched.nodes import BATCHED_OPSET
from peagle_trt.graph.batched.ports import Port, target_ports
from peagle_trt.graph.builder import Element, GraphBuilder
from peagle_trt.graph.target import target_heads
from peagle_trt.spec import TargetConfig, TensorSpec

if TYPE_CHECKING:
    import onnx


def target_graph(
    config: TargetConfig,
    stored: Mapping[str, TensorSpec],
    *,
    element: Element,
    cache_capacity: int,
    experts: MixExperts = gathered_experts,
) -> onnx.ModelProto:
    """Write the target; B, S and L are free.

    Inputs: `token_ids` [B, S]; `start_positions` [B], position of a sequence's first row and its place in the cache;
    `key_lengths` [B], valid rows of the cache after this pass, S more than the start; `logit_rows` [B, L], rows whose
    logits are wanted; the caches. Rows past a sequence's own are padding: what they leave in the cache the next pass
    overwrites, so that S more rows than the sequence has must fit. A place without a sequence takes a start of C - S.
    Outputs: `logits` [B, L, V]; `hidden` [B, S, A * H]; `greedy_token_ids` [B, L], the largest logits', the lowest of
    equal ones (see greedy.py); the caches.

    Args:
        config: The target.
        stored: Its weights.
        element: What the graph computes in.
        cache_capacity: C, positions a cache holds.
        experts: Emits the experts of a layer.
    """
    builder = GraphBuilder("target", stored, opset=BATCHED_OPSET, element=element)
    ports = target_ports(config, element=element, cache_capacity=cache_capacity)
    declare_inputs(builder, ports)
    attention = BatchedAttention(
        builder,
        target_heads(config),
        config.rope,
        positions=_positions(builder),
        cache_capacity=cache_capacity,
        has_sinks=config.has_sinks,
    )
    streams = _streams(builder, attention, config, experts)
    normed = rms_norm(builder, streams[config.num_layers], "norm", config.rms_norm_eps)
    logits = linear(builder, picked_rows(builder, normed, "logit_rows"), _output_table(config))
    builder.cast(logits, "FLOAT", output="logits")
    pick_greedily(builder, "logits", config.vocab_size, output="greedy_token_ids")
    builder.op("Concat", *(streams[layer] for layer in config.aux_layer_ids), axis=-1, output="hidden")
    declare_outputs(builder, ports)
    return builder.model()


def declare_inputs(builder: GraphBuilder, ports: tuple[Port, ...]) -> None:
    """Declare every input."""
    for port in ports:
        if port.is_input:
            builder.input(port.name, port.element, port.dims)


def declare_outputs(builder: GraphBuilder, ports: tuple[Port, ...]) -> None:
    """Declare every output, all of which some node writes by now."""
    for port in ports:
        if not port.is_input:
            builder.output(port.name, port.element, port.dims)


def _output_table(config: TargetConfig) -> str:
    return "embed_tokens" if config.is_tied else "lm_head"


def _positions(builder: GraphBuilder) -> str:
    """[B, S] int32, from every sequence's start on."""
    step = builder.op("Squeeze", builder.op("Shape", "token_ids", start=1, end=2))
    zero, one = (builder.constant(np.array(value, np.int64)) for value in (0, 1))
    rows = builder.cast(builder.op("Range", zero, step, one), "INT32")
    return builder.op(
        "Add", builder.op("Unsqueeze", "start_positions", builder.constant(np.array([1], np.int64))), rows
    )


def _streams(
    builder: GraphBuilder, attention: BatchedAttention, config: TargetConfig, experts: MixExperts
) -> list[str]:
    """The streams entering each layer, and the one that leaves the last."""
    kind = LayerKind(epsilon=config.rms_norm_eps, experts=config.experts, mix_experts=experts)
    # Looked up in the table that the output layer reads as well where they are tied: an engine then holds it once.
    streams = [builder.op("Gather", builder.weight("embed_tokens"), "token_ids", axis=0)]
    for layer in range(config.num_layers):
        normed = rms_norm(builder, streams[-1], f"layers.{layer}.input_norm", config.rms_norm_eps)
        window = config.attention_window(layer)
        streams.append(decoder_layer(builder, attention, kind, layer, normed, streams[-1], window=window))
    return streams
