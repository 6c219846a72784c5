"""Kinds of layers, as recipes name them, by our names of tensors."""

from __future__ import annotations

_KINDS = {
    "embed_tokens": "embedding",
    "lm_head": "lm_head",
    "fc": "fc",
    "qkv_proj": "qkv",
    "q_proj": "qkv",
    "k_proj": "qkv",
    "v_proj": "qkv",
    "o_proj": "o",
    "gate_up_proj": "gate_up",
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


def kind_of(name: str) -> str:
    """The kind of one of our tensors; whatever is no matrix counts among the norms."""
    if name in _FIXED_NAMES:
        return FIXED
    return _KINDS.get(name.rpartition(".")[2], "norms")
