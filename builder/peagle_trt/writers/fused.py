"""Which layers of a checkpoint loaders multiply as one, by the names that the Llama family gives them."""

from __future__ import annotations

import re

# Multiplied as one matrix by every loader, so that one global scale serves all of a group.
_FUSED = {
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
}


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
