"""Graph of a plain EAGLE-3 drafter: one pass drafts one token of every sequence, and K passes draft K.

The first pass after a verify step reads its rows, whose states come from the target through `fc`. Every later pass
reads the token that was drafted last and the state that the drafter itself gave it, which does not go through `fc`.
One graph does both: rows of either kind may be none, and the matrices are loaded once.

Letters: T rows of all sequences, F rows with states of the target, N rows with states of the drafter, S sampled rows,
A auxiliary states, H and Ht hidden sizes of drafter and target, D draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from peagle_trt.graph.builder import GraphBuilder
from peagle_trt.graph.drafter import drafter_attention, drafter_layers, fuse_states
from peagle_trt.graph.layers import linear, rms_norm
from peagle_trt.spec import DrafterConfig, TensorSpec

if TYPE_CHECKING:
    import onnx


def sequential_drafter_graph(
    config: DrafterConfig, stored: Mapping[str, TensorSpec], *, num_groups: int, cache_capacity: int
) -> onnx.ModelProto:
    """Write the drafter. T, F, N and S are free; T = F + N, the F rows before the N.

    Inputs: `next_token_ids` [T] int32, the token that follows each row; `hidden` [F, A * Ht] float32; `drafter_hidden`
    [N, H] float32; `sampled_rows` [S] int32; `row_counts`, `key_lengths` and caches as in the target's graph.
    Outputs: `draft_token_ids` [S] int32 in the target's vocabulary, `draft_logits` [S, D] and `next_hidden` [S, H]
    float32, the state that goes with the drafted token in the next pass; caches.

    Args:
        config: The drafter.
        stored: Its weights, with `embed_tokens`, `lm_head` and `draft_to_target` made ready.
        num_groups: Sequences that may share a pass.
        cache_capacity: Positions a cache holds.

    Source: EAGLE-3 (arXiv 2503.01840, section 3.1); vLLM 0.32 `llama_eagle3.py`, where the next pass gets the stream
        before the final norm unless `norm_output` is set.
    """
    builder = GraphBuilder("drafter", stored)
    rows, stream, sampled = _fusion_input(builder, config)
    attention = drafter_attention(builder, config, num_groups=num_groups, cache_capacity=cache_capacity)
    normed, total = drafter_layers(builder, config, attention, rows, stream)
    sampled_normed = builder.op("Gather", normed, sampled, axis=0)
    if config.norm_output:
        builder.op("Identity", sampled_normed, output="next_hidden")
    else:
        builder.op("Gather", total, sampled, axis=0, output="next_hidden")
    linear(builder, sampled_normed, "lm_head", output="draft_logits")
    best = builder.op("ArgMax", "draft_logits", axis=-1, keepdims=0)
    ids = builder.op("Gather", builder.weight("draft_to_target"), best, axis=0)
    builder.cast(ids, "INT32", output="draft_token_ids")
    builder.output("draft_token_ids", "INT32", ["S"])
    builder.output("draft_logits", "FLOAT", ["S", config.draft_vocab_size])
    builder.output("next_hidden", "FLOAT", ["S", config.hidden_size])
    return builder.model()


def _fusion_input(builder: GraphBuilder, config: DrafterConfig) -> tuple[str, str, str]:
    """Layer 0's input [T, 2H], its residual [T, H] and the rows to sample."""
    next_token_ids = builder.input("next_token_ids", "INT32", ["T"])
    hidden = builder.input("hidden", "FLOAT", ["F", len(config.aux_layer_ids) * config.target_hidden_size])
    drafter_hidden = builder.input("drafter_hidden", "FLOAT", ["N", config.hidden_size])
    sampled = builder.input("sampled_rows", "INT32", ["S"])
    states = builder.op("Concat", fuse_states(builder, config, hidden), drafter_hidden, axis=0)
    normed = rms_norm(builder, states, "layers.0.hidden_norm", config.rms_norm_eps)
    embedded = builder.rows("embed_tokens", next_token_ids)
    normed_embedded = rms_norm(builder, embedded, "layers.0.input_norm", config.rms_norm_eps)
    # The embedding first, as in the checkpoint's columns.
    rows = builder.op("Concat", normed_embedded, normed, axis=-1)
    return rows, normed if config.norm_before_residual else states, sampled
