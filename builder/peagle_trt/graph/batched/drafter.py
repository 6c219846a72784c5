"""Graph of the drafter: a verify step's outcome in, the candidates of K slots of every sequence out, in one pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from peagle_trt.graph.attention import HeadShape
from peagle_trt.graph.batched.attention import BatchedAttention
from peagle_trt.graph.batched.layers import LayerKind, decoder_layer, linear, rms_norm
from peagle_trt.graph.batched.nodes import BATCHED_OPSET
from peagle_trt.graph.batched.ports import drafter_ports
from peagle_trt.graph.batched.select import select_with_nodes, select_with_plugin
from peagle_trt.graph.batched.target import declare_inputs, declare_outputs
from peagle_trt.graph.builder import Element, GraphBuilder
from peagle_trt.spec import DrafterConfig, TensorSpec
from peagle_trt_plugins import contract
from peagle_trt_plugins.onnx_function import parallel_draft_function
from peagle_trt_plugins.ports import TENSORRT_ATTRIBUTES

if TYPE_CHECKING:
    import onnx


def drafter_graph(
    config: DrafterConfig,
    stored: Mapping[str, TensorSpec],
    *,
    element: Element,
    cache_capacity: int,
    uses_plugins: bool,
) -> onnx.ModelProto:
    """Write the drafter; B, R and K are free.

    Inputs: `next_token_ids` [B, R], `hidden` [B, R, A * Ht], `num_accepted` and `start_positions` [B], `mask_token_ids`
    [K] (see peagle_trt_plugins.contract); `key_lengths` [B], R + K - 1 more than the start; the caches.
    Outputs: `candidate_ids` [B, K, M] in the target's vocabulary, best first; `probabilities` [B, K, M], the softmax of
    their logits among themselves (see peagle_trt_plugins.contract_select_draft, at temperature 1); the caches.

    Args:
        config: The drafter.
        stored: Its weights, with `embed_tokens`, `lm_head`, `fused_mask_hidden` and `draft_to_target` made ready.
        element: What the graph computes in.
        cache_capacity: C, positions a cache holds.
        uses_plugins: Drafts are selected by a node that a plugin takes; otherwise by the standard operators.
    """
    builder = GraphBuilder("drafter", stored, opset=BATCHED_OPSET, element=element)
    ports = drafter_ports(config, element=element, cache_capacity=cache_capacity)
    declare_inputs(builder, ports)
    rows, stream, positions, sample_rows = _parallel_draft(builder, config)
    attention = BatchedAttention(
        builder, _heads(config), config.rope, positions=positions, cache_capacity=cache_capacity
    )
    kind = LayerKind(epsilon=config.rms_norm_eps)
    for layer in range(config.num_layers):
        if layer > 0:
            rows = rms_norm(builder, stream, f"layers.{layer}.input_norm", config.rms_norm_eps)
        window = config.attention_window(layer)
        stream = decoder_layer(builder, attention, kind, layer, rows, stream, window=window)
    normed = rms_norm(builder, stream, "norm", config.rms_norm_eps)
    select = select_with_plugin if uses_plugins else select_with_nodes
    select(builder, config, normed, sample_rows)
    declare_outputs(builder, ports)
    return builder.model()


def _heads(config: DrafterConfig) -> HeadShape:
    return HeadShape(
        num_query=config.num_attention_heads,
        num_key_value=config.num_key_value_heads,
        dim=config.head_dim,
        norm_epsilon=config.rms_norm_eps if config.has_qk_norm else None,
    )


def _parallel_draft(builder: GraphBuilder, config: DrafterConfig) -> list[str]:
    """Layer 0's input, the stream it is added to, positions and rows to sample."""
    fused = linear(builder, _before_fc(builder, config), "fc")
    builder.function(parallel_draft_function())
    return builder.ops(
        contract.NAME,
        "next_token_ids",
        fused,
        "num_accepted",
        "start_positions",
        "mask_token_ids",
        builder.weight("embed_tokens"),
        builder.weight("fused_mask_hidden"),
        builder.weight("layers.0.input_norm"),
        builder.weight("layers.0.hidden_norm"),
        outputs=[port.name for port in contract.OUTPUTS],
        domain=contract.DOMAIN,
        epsilon=config.rms_norm_eps,
        norm_before_residual=int(config.norm_before_residual),
        **TENSORRT_ATTRIBUTES,
    )


def _before_fc(builder: GraphBuilder, config: DrafterConfig) -> str:
    """Norms between the target's hidden states and `fc`; the same are applied to `mask_hidden` at build time."""
    hidden = "hidden"
    if config.norm_before_fc:
        hidden = rms_norm(builder, hidden, "input_norm", config.rms_norm_eps)
    if not config.has_fc_norm:
        return hidden
    count = len(config.aux_layer_ids)
    widths = builder.constant(np.full(count, config.target_hidden_size, np.int64))
    parts = builder.ops("Split", hidden, widths, outputs=count, axis=-1)
    normed = [rms_norm(builder, part, f"fc_norm.{index}", config.rms_norm_eps) for index, part in enumerate(parts)]
    return builder.op("Concat", *normed, axis=-1)
