"""Graph of the target: tokens of up to G sequences in, logits of chosen rows and auxiliary hidden states out.

Letters: T rows of all groups, G groups, L rows that need logits, V vocabulary, A auxiliary states, H hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from peagle_trt.graph.attention import Attention, GroupedAttention, HeadShape, StepAttention
from peagle_trt.graph.builder import GraphBuilder
from peagle_trt.graph.layers import add_and_norm, decoder_layer, linear, rms_norm
from peagle_trt.quant.packing import INTEGER_SCALES
from peagle_trt.spec import TargetConfig, TensorSpec

if TYPE_CHECKING:
    import onnx

STEP_GRAPH_WEIGHTS = 1 << 28
"""Numbers in a target that has a step graph, at most: ONNX Runtime packs them anew, 1 GiB, for every graph it loads."""


def target_graph(
    config: TargetConfig, stored: Mapping[str, TensorSpec], *, num_groups: int, cache_capacity: int
) -> onnx.ModelProto:
    """Write the target over groups of rows.

    Inputs: `token_ids` [T] int32; `row_counts` [G] int64 (absent for one group), rows of each group, 1 for a group past
    the last sequence, whose row is not in T; `key_lengths` [G] int32, tokens in the cache after this pass;
    `logit_rows` [L] int64; `key.{layer}.{group}` and `value.{layer}.{group}` [1, Hkv, C, D] float32.
    Outputs: `logits` [L, V] and `hidden` [T, A * H] float32; every cache again under `NAME.out`, to be bound to the
    very buffer of its input.

    Args:
        config: The target.
        stored: Its weights.
        num_groups: G, sequences a pass takes.
        cache_capacity: C, positions a cache holds.
    """

    def attention(builder: GraphBuilder) -> Attention:
        return GroupedAttention(
            builder,
            target_heads(config),
            config.rope,
            num_groups=num_groups,
            cache_capacity=cache_capacity,
            # Integers make much of little, and a verify step must see what single steps see.
            is_row_invariant=any(name.endswith(INTEGER_SCALES) for name in stored),
        )

    return _graph(config, stored, attention)


def step_graph(config: TargetConfig, stored: Mapping[str, TensorSpec], *, cache_capacity: int) -> onnx.ModelProto:
    """Write the target over one row of each of B neighbouring slots; B is free. Its bits are `target_graph`'s.

    Inputs and outputs are `target_graph`'s with T = B, but for `key_lengths` [B] int32, the absent `row_counts`, and
    `key.{layer}` and `value.{layer}` [B, Hkv, C, D] float32.

    Args:
        config: The target.
        stored: Its weights, of which none are integers; those want a second row in every product.
        cache_capacity: C, positions a cache holds.
    """

    def attention(builder: GraphBuilder) -> Attention:
        return StepAttention(builder, target_heads(config), config.rope, cache_capacity=cache_capacity)

    return _graph(config, stored, attention)


def has_step_graph(stored: Mapping[str, TensorSpec]) -> bool:
    """Whether `step_graph` can be written for these weights and its third packed copy of them is worth its memory."""
    if any(name.endswith(INTEGER_SCALES) for name in stored):
        return False
    return sum(math.prod(spec.shape) for spec in stored.values()) <= STEP_GRAPH_WEIGHTS


def _graph(
    config: TargetConfig, stored: Mapping[str, TensorSpec], make_attention: Callable[[GraphBuilder], Attention]
) -> onnx.ModelProto:
    builder = GraphBuilder("target", stored)
    token_ids = builder.input("token_ids", "INT32", ["T"])
    logit_rows = builder.input("logit_rows", "INT64", ["L"])
    attention = make_attention(builder)
    streams, last, residual = _layers(builder, attention, config, token_ids)
    normed, streams[config.num_layers] = add_and_norm(builder, last, residual, "norm", config.rms_norm_eps)
    # A tied table that is quantized is stored twice: as it is to be looked up in, and as integers to be multiplied.
    table = "lm_head" if builder.has_weight("lm_head") else "embed_tokens"
    rows = builder.op("Gather", normed, logit_rows, axis=0)
    linear(builder, rows, table, output="logits")
    builder.op("Concat", *(streams[layer] for layer in config.aux_layer_ids), axis=-1, output="hidden")
    builder.output("logits", "FLOAT", ["L", config.vocab_size])
    builder.output("hidden", "FLOAT", ["T", len(config.aux_layer_ids) * config.hidden_size])
    return builder.model()


def target_heads(config: TargetConfig) -> HeadShape:
    """Heads of every layer of the target."""
    return HeadShape(
        num_query=config.num_attention_heads,
        num_key_value=config.num_key_value_heads,
        dim=config.head_dim,
        norm_epsilon=config.rms_norm_eps if config.has_qk_norm else None,
    )


def _layers(
    builder: GraphBuilder, attention: Attention, config: TargetConfig, token_ids: str
) -> tuple[dict[int, str], str, str]:
    """The streams entering each layer, by layer; then the last layer's MLP output and stream, still to be added."""
    epsilon = config.rms_norm_eps
    embedded = builder.rows("embed_tokens", token_ids)
    streams: dict[int, str] = {}
    normed, stream, last = rms_norm(builder, embedded, "layers.0.input_norm", epsilon), embedded, ""
    for layer in range(config.num_layers):
        if layer > 0:
            normed, stream = add_and_norm(builder, last, stream, f"layers.{layer}.input_norm", epsilon)
        streams[layer] = stream
        last, stream = decoder_layer(
            builder,
            attention,
            layer,
            normed,
            stream,
            epsilon,
            window=config.attention_window(layer),
            experts=config.experts,
        )
    return streams, last, stream
