"""Kinds of layers, by our names of tensors, and what becomes of one."""

from __future__ import annotations

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
