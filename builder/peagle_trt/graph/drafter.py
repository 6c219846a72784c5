"""Graph of the drafter: a verify step's outcome in, K draft tokens of every sequence out, in one pass.

Letters: B sequences, R rows carried over, K drafted slots, W = R + K - 1, T = B * W, A auxiliary states, H and Ht
hidden sizes of drafter and target, D draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from peagle_trt.graph.attention import GroupedAttention, HeadShape
from peagle_trt.graph.builder import GraphBuilder
from peagle_trt.graph.layers import add_and_norm, decoder_layer, flatten, linear, rms_norm
from peagle_trt.spec import DrafterConfig, TensorSpec
from peagle_trt_plugins import contract
from peagle_trt_plugins.onnx_function import parallel_draft_function

if TYPE_CHECKING:
    import onnx


def drafter_graph(
    config: DrafterConfig, stored: Mapping[str, TensorSpec], *, num_groups: int, cache_capacity: int
) -> onnx.ModelProto:
    """Write the drafter. B is fixed to `num_groups`; R and K are free.

    Inputs: `next_token_ids` [B, R] int32, `hidden` [B, R, A * Ht] float32, `num_accepted` and `start_positions` [B]
    int32, `mask_token_ids` [K] int32 (see peagle_trt_plugins.contract); `row_counts`, `key_lengths` and caches as in
    the target's graph, where a group is a sequence of W rows.
    Outputs: `draft_token_ids` [B, K] int32 in the target's vocabulary, `draft_logits` [B, K, D] float32; caches.

    Args:
        config: The drafter.
        stored: Its weights, with `embed_tokens`, `lm_head`, `fused_mask_hidden` and `draft_to_target` made ready.
        num_groups: B.
        cache_capacity: Positions a cache holds.
    """
    builder = GraphBuilder("drafter", stored)
    layer_input, residual, sample_rows = _parallel_draft(builder, config, num_groups)
    attention = drafter_attention(builder, config, num_groups=num_groups, cache_capacity=cache_capacity)
    rows, stream = flatten(builder, layer_input, 2 * config.hidden_size), flatten(builder, residual, config.hidden_size)
    normed, _ = drafter_layers(builder, config, attention, rows, stream)
    _sample(builder, config, normed, sample_rows, num_groups)
    return builder.model()


def drafter_attention(
    builder: GraphBuilder, config: DrafterConfig, *, num_groups: int, cache_capacity: int
) -> GroupedAttention:
    """The attention of a head's layers, after its first inputs are declared."""
    heads = HeadShape(
        num_query=config.num_attention_heads,
        num_key_value=config.num_key_value_heads,
        dim=config.head_dim,
        norm_epsilon=config.rms_norm_eps if config.has_qk_norm else None,
    )
    return GroupedAttention(builder, heads, config.rope, num_groups=num_groups, cache_capacity=cache_capacity)


def drafter_layers(
    builder: GraphBuilder, config: DrafterConfig, attention: GroupedAttention, rows: str, stream: str
) -> tuple[str, str]:
    """All layers and the final norm.

    Args:
        builder: Graph under construction.
        config: The drafter.
        attention: Emits the attention.
        rows: [T, 2H], the fusion layer's input.
        stream: [T, H], what its attention is added to.

    Returns:
        [T, H] each: the normalised rows that `lm_head` reads, and the stream before the norm.
    """
    last, stream = decoder_layer(
        builder, attention, 0, rows, stream, config.rms_norm_eps, window=config.attention_window(0)
    )
    for layer in range(1, config.num_layers):
        rows, stream = add_and_norm(builder, last, stream, f"layers.{layer}.input_norm", config.rms_norm_eps)
        window = config.attention_window(layer)
        last, stream = decoder_layer(builder, attention, layer, rows, stream, config.rms_norm_eps, window=window)
    return add_and_norm(builder, last, stream, "norm", config.rms_norm_eps)


def fuse_states(builder: GraphBuilder, config: DrafterConfig, hidden_T: str) -> str:
    """The target's auxiliary states at the drafter's width: optional norms, then `fc`."""
    return linear(builder, _before_fc(builder, config, hidden_T), "fc")


def _parallel_draft(builder: GraphBuilder, config: DrafterConfig, batch: int) -> tuple[str, str, str]:
    next_token_ids = builder.input("next_token_ids", "INT32", [batch, "R"])
    fused_width = len(config.aux_layer_ids) * config.target_hidden_size
    hidden = builder.input("hidden", "FLOAT", [batch, "R", fused_width])
    num_accepted = builder.input("num_accepted", "INT32", [batch])
    start_positions = builder.input("start_positions", "INT32", [batch])
    mask_token_ids = builder.input("mask_token_ids", "INT32", ["K"])
    fused = fuse_states(builder, config, flatten(builder, hidden, fused_width))
    by_sequence = builder.op("Reshape", fused, builder.constant(np.array([batch, -1, config.hidden_size], np.int64)))
    builder.function(parallel_draft_function(widens_embedding=builder.is_turned("embed_tokens")))
    layer_input, residual, _, sample_rows = builder.ops(
        contract.NAME,
        next_token_ids,
        by_sequence,
        num_accepted,
        start_positions,
        mask_token_ids,
        builder.raw_weight("embed_tokens"),
        builder.weight("fused_mask_hidden"),
        builder.weight("layers.0.input_norm"),
        builder.weight("layers.0.hidden_norm"),
        outputs=[port.name for port in contract.OUTPUTS],
        domain=contract.DOMAIN,
        epsilon=config.rms_norm_eps,
        norm_before_residual=int(config.norm_before_residual),
    )
    return layer_input, residual, sample_rows


def _before_fc(builder: GraphBuilder, config: DrafterConfig, hidden_T: str) -> str:
    """Norms between the target's hidden states and `fc`; the same are applied to `mask_hidden` at build time."""
    if config.norm_before_fc:
        hidden_T = rms_norm(builder, hidden_T, "input_norm", config.rms_norm_eps)
    if not config.has_fc_norm:
        return hidden_T
    count = len(config.aux_layer_ids)
    parts = builder.ops("Split", hidden_T, outputs=count, axis=-1, num_outputs=count)
    normed = [rms_norm(builder, part, f"fc_norm.{index}", config.rms_norm_eps) for index, part in enumerate(parts)]
    return builder.op("Concat", *normed, axis=-1)


def _sample(builder: GraphBuilder, config: DrafterConfig, normed_T: str, sample_rows_BK: str, batch: int) -> None:
    """Logits of the K sampled rows only, their argmax, and its id in the target's vocabulary."""
    by_sequence = builder.op("Reshape", normed_T, builder.constant(np.array([batch, -1, config.hidden_size], np.int64)))
    indices = builder.op("Unsqueeze", sample_rows_BK, builder.constant(np.array([2], np.int64)))
    rows = builder.op("GatherND", by_sequence, builder.cast(indices, "INT64"), batch_dims=1)
    logits = linear(builder, flatten(builder, rows, config.hidden_size), "lm_head")
    shape = builder.constant(np.array([batch, -1, config.draft_vocab_size], np.int64))
    builder.op("Reshape", logits, shape, output="draft_logits")
    best = builder.op("ArgMax", "draft_logits", axis=-1, keepdims=0)
    ids = builder.op("Gather", builder.weight("draft_to_target"), best, axis=0)
    builder.cast(ids, "INT32", output="draft_token_ids")
    builder.output("draft_token_ids", "INT32", [batch, "K"])
    builder.output("draft_logits", "FLOAT", [batch, "K", config.draft_vocab_size])
