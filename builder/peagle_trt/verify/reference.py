"""Target and drafter in plain numpy and float64, without a cache: slow, obvious, and sharing no code with the engines.

Letters: T rows, H hidden size, D head dimension, N query heads, M key/value heads, G query heads a key head,
V vocabulary, A auxiliary states, K drafted slots.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peagle_trt.spec import DrafterConfig, TargetConfig
from peagle_trt.verify.feed_forward import feed_forward
from peagle_trt.verify.rotary import rotate
from peagle_trt.verify.weights import Array, Load, linear, read, rms_norm

OnCache = Callable[[int, Array, Array], None]
"""Told a layer, its keys [T, M, D] as they were rotated, and its values [T, M, D]."""
VOCABULARY_BLOCK = 4096
"""Rows of an output layer that are widened to float64 at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetReference:
    """What the target says about every row of a text.

    Attributes:
        logits: [T, V].
        hidden: [T, A*H], the streams entering the auxiliary layers, ascending.
        routing_margin: How clear the closest choice of any router was (see `feed_forward.mix_experts`).
    """

    logits: Array
    hidden: Array
    routing_margin: float


def run_target(config: TargetConfig, load: Load, token_ids: NDArray[np.int64]) -> TargetReference:
    """Read a whole text at once.

    Args:
        config: The target; `aux_layer_ids` names the streams to keep.
        load: Its weights.
        token_ids: [T].
    """
    stream_TH = _embed(load, token_ids)
    positions_T = np.arange(len(token_ids))
    kept: dict[int, Array] = {}
    margin = math.inf
    for layer in range(config.num_layers):
        kept[layer] = stream_TH
        stream_TH, layer_margin = _layer(config, load, layer, stream_TH, positions_T)
        margin = min(margin, layer_margin)
    kept[config.num_layers] = stream_TH
    normed_TH = rms_norm(stream_TH, read(load, "norm"), config.rms_norm_eps)
    logits_TV = _logits(_load_output_layer(config, load), normed_TH)
    hidden_TA = np.concatenate([kept[i] for i in config.aux_layer_ids], axis=1)
    return TargetReference(logits=logits_TV, hidden=hidden_TA, routing_margin=margin)


def run_head(
    config: DrafterConfig, load: Load, next_token_ids: NDArray[np.int64], hidden_TA: Array, drafts: NDArray[np.int32]
) -> Array:
    """What a head of either kind says where an engine drafted [K] `drafts`: [K, Vd] logits.

    A sequential head's passes follow from the drafts before them; the engine's own are taken, so that a tie between two
    tokens cannot part the two.
    """
    if config.is_parallel:
        return run_drafter(config, load, next_token_ids, hidden_TA, len(drafts))
    return run_sequential_drafter(config, load, next_token_ids, hidden_TA, drafts.astype(np.int64))


def run_drafter(
    config: DrafterConfig,
    load: Load,
    next_token_ids: NDArray[np.int64],
    hidden_TA: Array,
    draft_tokens: int,
    on_cache: OnCache | None = None,
) -> Array:
    """Draft once after a text, everything recomputed.

    Args:
        config: The drafter.
        load: Its weights, where `embed_tokens`, `lm_head` and `mask_hidden` are answered too.
        next_token_ids: [T], the token that follows each row; the last one is the bonus token.
        hidden_TA: [T, A*Ht], the target's auxiliary states of the rows.
        draft_tokens: K.
        on_cache: Told what every layer would keep.

    Returns:
        [K, Vd] logits of the drafted slots.

    Source: P-EAGLE (arXiv 2602.01469, section 2): K-1 masked slots behind the bonus token's, consecutive positions.
    """
    fused_mask_H = load_fused_mask(config, load)
    masks = draft_tokens - 1
    tokens = np.concatenate([next_token_ids, np.full(masks, config.mask_token_id)])
    hidden_TH = np.concatenate([fuse(config, load, hidden_TA), np.tile(fused_mask_H, (masks, 1))])
    stream_KH = _drafter_stream(config, load, tokens, hidden_TH, on_cache)[len(next_token_ids) - 1 :]
    return _logits(load("lm_head"), rms_norm(stream_KH, read(load, "norm"), config.rms_norm_eps))


def run_sequential_drafter(
    config: DrafterConfig, load: Load, next_token_ids: NDArray[np.int64], hidden_TA: Array, drafts: NDArray[np.int64]
) -> Array:
    """Draft after a text with a plain EAGLE-3 head, a pass for every draft, everything recomputed in each.

    Args:
        config: The drafter.
        load: Its weights, where `embed_tokens` and `lm_head` are answered too.
        next_token_ids: [T], the token that follows each row; the last one is the bonus token.
        hidden_TA: [T, A*Ht], the target's auxiliary states of the rows.
        drafts: [K], the drafts that the passes chose; each pass but the last is followed by one that reads its draft.

    Returns:
        [K, Vd] logits of the passes.

    Source: EAGLE-3 (arXiv 2503.01840, section 3.1): the drafter's own state stands for the target's, past `fc`.
    """
    tokens, hidden_TH = next_token_ids, fuse(config, load, hidden_TA)
    logits = []
    for draft in drafts:
        stream_1H = _drafter_stream(config, load, tokens, hidden_TH)[-1:]
        normed_1H = rms_norm(stream_1H, read(load, "norm"), config.rms_norm_eps)
        logits.append(_logits(load("lm_head"), normed_1H))
        tokens = np.append(tokens, draft)
        hidden_TH = np.concatenate([hidden_TH, normed_1H if config.norm_output else stream_1H])
    return np.concatenate(logits)


def _drafter_stream(
    config: DrafterConfig,
    load: Load,
    tokens: NDArray[np.int64],
    hidden_TH: Array,
    on_cache: OnCache | None = None,
) -> Array:
    """The stream after the drafter's last layer, [T, H]."""
    positions_T = np.arange(len(tokens))
    stream_TH = _fusion_layer(config, load, _embed(load, tokens), hidden_TH, positions_T, on_cache)
    for layer in range(1, config.num_layers):
        stream_TH, _ = _layer(config, load, layer, stream_TH, positions_T, on_cache)
    return stream_TH


def fuse(config: DrafterConfig, load: Load, hidden_TA: Array) -> Array:
    """Auxiliary states to the drafter's width: optional norms, then `fc`; [T, A*Ht] to [T, H]."""
    if config.norm_before_fc:
        hidden_TA = rms_norm(hidden_TA, read(load, "input_norm"), config.rms_norm_eps)
    if config.has_fc_norm:
        parts = np.split(hidden_TA, len(config.aux_layer_ids), axis=-1)
        normed = [rms_norm(p, read(load, f"fc_norm.{i}"), config.rms_norm_eps) for i, p in enumerate(parts)]
        hidden_TA = np.concatenate(normed, axis=-1)
    fused: Array = hidden_TA @ read(load, "fc").T
    return fused


def load_fused_mask(config: DrafterConfig, load: Load) -> Array:
    """Hidden state of a masked slot, [H]: as a build stores it, or from `mask_hidden` itself."""
    try:
        return read(load, "fused_mask_hidden")
    except KeyError:
        fused: Array = fuse(config, load, read(load, "mask_hidden").reshape(1, -1))[0]
        return fused


def _embed(load: Load, token_ids: NDArray[np.int64]) -> Array:
    embedded: Array = load("embed_tokens")[token_ids].astype(np.float64)
    return embedded


def _load_output_layer(config: TargetConfig, load: Load) -> NDArray[np.generic]:
    """The target's output layer; a build that rounds it has one of its own even where the checkpoint ties it."""
    if not config.is_tied:
        return load("lm_head")
    try:
        return load("lm_head")
    except KeyError:
        return load("embed_tokens")


def _logits(table_VH: NDArray[np.generic], rows_TH: Array) -> Array:
    """Rows times an output layer, a part of the vocabulary at a time: in float64 a whole one is the largest tensor."""
    blocks = range(0, len(table_VH), VOCABULARY_BLOCK)
    return np.concatenate(
        [rows_TH @ table_VH[start : start + VOCABULARY_BLOCK].astype(np.float64).T for start in blocks], axis=1
    )


def _fusion_layer(
    config: DrafterConfig,
    load: Load,
    embedded_TH: Array,
    hidden_TH: Array,
    positions_T: NDArray[np.int64],
    on_cache: OnCache | None,
) -> Array:
    prefix, eps = "layers.0.", config.rms_norm_eps
    normed_TH = rms_norm(hidden_TH, read(load, f"{prefix}hidden_norm"), eps)
    embedded = rms_norm(embedded_TH, read(load, f"{prefix}input_norm"), eps)
    residual_TH = normed_TH if config.norm_before_residual else hidden_TH
    # Layer 0 reads [embedding | hidden], 2H wide; the others read H.
    attended = _attention(config, load, 0, np.concatenate([embedded, normed_TH], axis=1), positions_T, on_cache)
    stream_TH, _ = _add_feed_forward(config, load, prefix, residual_TH + attended)
    return stream_TH


def _layer(
    config: TargetConfig | DrafterConfig,
    load: Load,
    layer: int,
    stream_TH: Array,
    positions_T: NDArray[np.int64],
    on_cache: OnCache | None = None,
) -> tuple[Array, float]:
    """The stream after a layer, and how clear its router's choices were."""
    prefix = f"layers.{layer}."
    normed = rms_norm(stream_TH, read(load, f"{prefix}input_norm"), config.rms_norm_eps)
    attended = _attention(config, load, layer, normed, positions_T, on_cache)
    return _add_feed_forward(config, load, prefix, stream_TH + attended)


def _add_feed_forward(
    config: TargetConfig | DrafterConfig, load: Load, prefix: str, stream_TH: Array
) -> tuple[Array, float]:
    normed = rms_norm(stream_TH, read(load, f"{prefix}post_attention_norm"), config.rms_norm_eps)
    output_TH, margin = feed_forward(config, load, prefix, normed)
    return stream_TH + output_TH, margin


def _attention(
    config: TargetConfig | DrafterConfig,
    load: Load,
    layer: int,
    values: Array,
    positions_T: NDArray[np.int64],
    on_cache: OnCache | None,
) -> Array:
    prefix = f"layers.{layer}."
    has_bias = config.has_qkv_bias if isinstance(config, TargetConfig) else config.has_attention_bias
    rows, width = len(values), config.head_dim
    queries_TND = linear(load, prefix, "q", values, has_bias=has_bias).reshape(rows, -1, width)
    keys_TMD = linear(load, prefix, "k", values, has_bias=has_bias).reshape(rows, -1, width)
    values_TMD = linear(load, prefix, "v", values, has_bias=has_bias).reshape(rows, -1, width)
    if config.has_qk_norm:
        queries_TND = rms_norm(queries_TND, read(load, f"{prefix}q_norm"), config.rms_norm_eps)
        keys_TMD = rms_norm(keys_TMD, read(load, f"{prefix}k_norm"), config.rms_norm_eps)
    queries_TND = rotate(config.rope, queries_TND, positions_T)
    keys_TMD = rotate(config.rope, keys_TMD, positions_T)
    if on_cache is not None:
        on_cache(layer, keys_TMD, values_TMD)
    grouped_TMGD = queries_TND.reshape(rows, config.num_key_value_heads, -1, width)
    scores = np.einsum("tmgd,smd->mgts", grouped_TMGD, keys_TMD) / math.sqrt(width)
    scores = np.where(_visible(positions_T, config.attention_window(layer)), scores, -np.inf)
    sinks_MG = _sinks(config, load, prefix)
    largest = np.maximum(scores.max(axis=-1), sinks_MG[:, :, None])[..., None]
    weights = np.exp(scores - largest)
    weights /= weights.sum(axis=-1, keepdims=True) + np.exp(sinks_MG[:, :, None, None] - largest)
    mixed = np.einsum("mgts,smd->tmgd", weights, values_TMD).reshape(rows, -1)
    return linear(load, prefix, "o", mixed, has_bias=config.has_output_bias)


def _sinks(config: TargetConfig | DrafterConfig, load: Load, prefix: str) -> Array:
    """What every query head's softmax counts and leaves out, [M, G]; minus infinity where there is nothing."""
    shape = (config.num_key_value_heads, -1)
    if isinstance(config, TargetConfig) and config.has_sinks:
        return read(load, f"{prefix}sinks").reshape(shape)
    return np.full(config.num_attention_heads, -np.inf).reshape(shape)


def _visible(positions_T: NDArray[np.int64], window: int) -> NDArray[np.bool_]:
    """Which row looks at which, [T, T]: itself and those before it, `window` in all unless it is 0."""
    distance = positions_T[:, None] - positions_T[None, :]
    return (distance >= 0) & ((distance < window) | (window == 0))
