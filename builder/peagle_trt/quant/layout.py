"""Which tensors a build stores, and how each is made from the checkpoints.

Stored names are those of `spec.names`, with q/k/v fused to `qkv_proj` and gate/up to `gate_up_proj`: one matrix product
reads its input once. Letters: H hidden size, A auxiliary states, Ht hidden size of the target, D draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peagle_trt.readers import DrafterCheckpoint, TargetCheckpoint, draft_to_target_ids
from peagle_trt.readers.tensors import Weights

_FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "qkv_bias": ("q_bias", "k_bias", "v_bias"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "gate_up_bias": ("gate_bias", "up_bias"),
}
_PARTS = {part: fused for fused, parts in _FUSED.items() for part in parts}
# Folded into `fused_mask_hidden`, written as `draft_to_target`, or gathered into the drafter's own output layer.
_REPLACED_IN_DRAFTER = ("mask_hidden", "d2t", "lm_head")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor to be written.

    Attributes:
        name: Stored name.
        dtype: F32 or I64.
        shape: Dimensions, outermost first.
        produce: Makes it; called once, just before it is written.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    produce: Callable[[], NDArray[np.generic]]


def target_layout(target: TargetCheckpoint) -> list[StoredTensor]:
    """Every tensor of `engine/target.safetensors`."""
    return _fuse(target.weights, target.weights)


def drafter_layout(drafter: DrafterCheckpoint, target: TargetCheckpoint) -> list[StoredTensor]:
    """Every tensor of `engine/drafter.safetensors`.

    A full-vocabulary output layer that is the target's is left out: the graph points into the target's file.
    """
    config = drafter.config
    draft_rows = config.draft_vocab_size
    kept = [name for name in drafter.weights if name not in _REPLACED_IN_DRAFTER]
    entries = _fuse(drafter.weights, kept)
    entries.append(
        StoredTensor(
            name="fused_mask_hidden",
            dtype="F32",
            shape=(config.hidden_size,),
            produce=lambda: fuse_mask_hidden(drafter),
        )
    )
    entries.append(
        StoredTensor(
            name="draft_to_target", dtype="I64", shape=(draft_rows,), produce=lambda: draft_to_target_ids(drafter)
        )
    )
    if stores_output_layer(drafter):
        entries.append(
            StoredTensor(
                name="lm_head",
                dtype="F32",
                shape=(draft_rows, config.hidden_size),
                produce=lambda: _output_rows(drafter, target),
            )
        )
    return entries


def stores_output_layer(drafter: DrafterCheckpoint) -> bool:
    """Whether the drafter's output layer differs from the target's, and so needs bytes of its own."""
    return drafter.config.has_own_lm_head or drafter.config.has_vocabulary_map


def fuse_mask_hidden(drafter: DrafterCheckpoint) -> NDArray[np.float32]:
    """What every masked slot's hidden state is once `fc` has read it.

    Returns:
        [H] float32, computed in float64.

    Source: vLLM 0.32 `combine_hidden_states` over `mask_hidden`: optional norms, then `fc`.
    """
    config, weights = drafter.config, drafter.weights
    mask = weights.load("mask_hidden").reshape(-1).astype(np.float64)
    if config.norm_before_fc:
        mask = _rms_norm(mask, weights.load("input_norm"), config.rms_norm_eps)
    if config.has_fc_norm:
        chunks = np.split(mask, len(config.aux_layer_ids))
        normed = (_rms_norm(c, weights.load(f"fc_norm.{i}"), config.rms_norm_eps) for i, c in enumerate(chunks))
        mask = np.concatenate(list(normed))
    fused: NDArray[np.float64] = weights.load("fc").astype(np.float64) @ mask
    return fused.astype(np.float32)


def _fuse(weights: Weights, names: Iterable[str]) -> list[StoredTensor]:
    stored: dict[str, StoredTensor] = {}
    for name in names:
        prefix, dot, part = name.rpartition(".")
        parts: tuple[str, ...] = (name,)
        if dot and part in _PARTS:
            name = f"{prefix}.{_PARTS[part]}"
            parts = tuple(f"{prefix}.{each}" for each in _FUSED[_PARTS[part]])
        stored.setdefault(name, _concatenated(name, weights, parts))
    return list(stored.values())


def _concatenated(name: str, weights: Weights, parts: tuple[str, ...]) -> StoredTensor:
    rows = sum(weights[part].shape[0] for part in parts)
    return StoredTensor(
        name=name,
        dtype="F32",
        shape=(rows, *weights[parts[0]].shape[1:]),
        produce=lambda: (
            weights.load(parts[0]) if len(parts) == 1 else np.concatenate([weights.load(part) for part in parts])
        ),
    )


def _output_rows(drafter: DrafterCheckpoint, target: TargetCheckpoint) -> NDArray[np.generic]:
    if drafter.config.has_own_lm_head:
        return drafter.weights.load("lm_head")
    table = target.weights.load("embed_tokens" if target.config.is_tied else "lm_head")
    return table[draft_to_target_ids(drafter)]


def _rms_norm(values: NDArray[np.float64], weight: NDArray[np.generic], eps: float) -> NDArray[np.float64]:
    normed: NDArray[np.float64] = values / np.sqrt(np.mean(values * values) + eps) * weight.astype(np.float64)
    return normed
