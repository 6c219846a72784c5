"""Kinds of layers, by our names of tensors, and which of them share a scale."""

from __future__ import annotations

import re
from dataclasses import dataclass

_KINDS = {
    "embed_tokens": "embedding",
    "lm_head": "lm_head",
    "fc": "fc",
    "q_proj": "qkv",
    "k_proj": "qkv",
    "v_proj": "qkv",
    "o_proj": "o",
    "gate_proj": "gate_up",
    "up_proj": "gate_up",
    "down_proj": "down",
    "router": "router",
    "experts_gate_up_proj": "experts",
    "experts_down_proj": "experts",
}
FIXED = "fixed"
"""The kind of what no recipe changes: a head's masked state and its vocabulary map."""
_FIXED_NAMES = ("mask_hidden", "d2t")
# Multiplied as one matrix by every loader, so that one global scale serves all of a group.
_FUSED = {
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlan:
    """What becomes of one layer.

    Attributes:
        module: Its name in the checkpoint.
        kind: A key of a recipe.
        weights: Form of its weights: a form of the recipe, or the type they are stored in.
        activations: Form of its input.
        stored_bytes: Bytes it takes now.
        written_bytes: Bytes it will take, scales included.
    """

    module: str
    kind: str
    weights: str
    activations: str
    stored_bytes: int
    written_bytes: int


def kind_of(name: str) -> str:
    """The kind of one of our tensors; whatever is no matrix counts among the norms."""
    if name in _FIXED_NAMES:
        return FIXED
    return _KINDS.get(name.rpartition(".")[2], "norms")


def group_of(module: str) -> str:
    """The name of those that share a scale with a layer: itself, or what a loader fuses it into."""
    parent, _, last = module.rpartition(".")
    return f"{parent}.{_FUSED[last]}" if last in _FUSED else module


def members_of(group: str) -> tuple[str, ...]:
    """Names of the layers that a loader fuses, or the layer alone."""
    parent, _, last = group.rpartition(".")
    parts = tuple(part for part, fused in _FUSED.items() if fused == last)
    return tuple(f"{parent}.{part}" for part in parts) or (group,)


def fused_name(module: str) -> str:
    """The name of the one layer that a loader makes of several: all experts of a layer, or a group."""
    return re.sub(r"(\.experts)\..*", r"\1", group_of(module))
