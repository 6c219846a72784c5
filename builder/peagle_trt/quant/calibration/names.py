"""Quantizers in a transformers model, and the modules of a checkpoint that their scales belong to."""

from __future__ import annotations

from typing import Any

INPUT, WEIGHT = "input_quantizer", "weight_quantizer"
_CACHES = {"k_bmm_quantizer": "k_proj.k_scale", "v_bmm_quantizer": "v_proj.v_scale"}
_UNFUSED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
"""A matrix of all experts, and what each expert's part is called in a checkpoint."""
FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Linears that an engine multiplies as one, and that must share scales therefore."""


def quantizers(model: Any) -> dict[str, Any]:
    """Every enabled quantizer by its place in the model."""
    from modelopt.torch.quantization.nn import TensorQuantizer

    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, TensorQuantizer) and module.is_enabled
    }


def is_of_input(name: str) -> bool:
    """Whether a quantizer stands in front of a matrix or a cache, so that only real text can tell its range."""
    return name.endswith((INPUT, *_CACHES))


def cache_scale(name: str) -> str | None:
    """Name of the scale of a cache's quantizer; None for other quantizers."""
    module, _, kind = name.rpartition(".")
    return f"{module}.{_CACHES[kind]}" if kind in _CACHES else None


def input_scale_stems(name: str, model: Any) -> list[str]:
    """What scales of an input quantizer begin with, up to `input_scale`.

    Args:
        name: Of the quantizer.
        model: That has it.

    Source: modelopt 0.47's export: experts are written one by one where each has a quantizer of its own weight, and
        as one parameter where they share it (gpt-oss), whose scale is named with an underscore.
    """
    parent, _, kind = name.rpartition(".")
    matrix = kind.removesuffix(INPUT).rstrip("_")
    if not matrix:
        return [f"{parent}."]
    experts = getattr(model.get_submodule(parent), f"{matrix}_{WEIGHT}s", None)
    if experts is None:
        return [f"{parent}.{matrix}_"]
    return [f"{parent}.{index}.{part}." for index in range(len(experts)) for part in _UNFUSED[matrix]]


def fused_groups(modules: set[str]) -> list[list[str]]:
    """The modules that stand side by side in a layer and are multiplied as one."""
    groups = []
    for parts in FUSED:
        parents = {module.rpartition(".")[0] for module in modules if module.rpartition(".")[2] in parts}
        groups += [[name for part in parts if (name := f"{parent}.{part}") in modules] for parent in sorted(parents)]
    return groups
