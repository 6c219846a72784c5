"""How the Llama family spells tensors, shared by targets and drafters."""

from __future__ import annotations

_TOP_LEVEL = {"embed_tokens": "embed_tokens.weight", "norm": "norm.weight", "lm_head": "lm_head.weight"}
_IN_LAYER = {
    "input_norm": "input_layernorm.weight",
    "post_attention_norm": "post_attention_layernorm.weight",
    "hidden_norm": "hidden_norm.weight",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "sinks": "self_attn.sinks",
    **{f"{part}_proj": f"self_attn.{part}_proj.weight" for part in "qkvo"},
    **{f"{part}_bias": f"self_attn.{part}_proj.bias" for part in "qkvo"},
    **{f"{part}_proj": f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")},
    **{f"{part}_bias": f"mlp.{part}_proj.bias" for part in ("gate", "up", "down")},
}


def llama_name(name: str) -> str:
    """The spelling of one of our names in a Llama checkpoint, without the `model.` prefix of targets."""
    if not name.startswith("layers."):
        return _TOP_LEVEL[name]
    _, layer, part = name.split(".")
    return f"layers.{layer}.{_IN_LAYER[part]}"
