"""Checkpoints whose layers have different algorithms: what each loader takes a layer for, by `quantized_layers`.

Source: vLLM 0.32 `modelopt.py` (`ModelOptMixedPrecisionConfig`: a layer's own name, then the parts that it is fused of,
then whatever lies below it); TensorRT-LLM 1.3 `_torch/models/modeling_utils.py` (`apply_layerwise_quant_config`: the
first entry that holds the name of queries or of gate, or that lies below a layer of experts, or the very name).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from peagle_trt.quant.layer_recipes import MIXED
from peagle_trt.writers.fused import members_of
from peagle_trt.writers.loaders.folder import Module

MIXED_ALGORITHMS = ("FP8", "NVFP4", "W4A16_NVFP4", "MXFP8")
_FUSED = ("qkv_proj", "gate_up_proj")
_EXPERTS = ".experts"


def is_mixed(algorithm: str) -> bool:
    """Whether a description names its layers one by one."""
    return algorithm.upper() == MIXED


def taken_by_vllm(prefix: str, layers: Mapping[str, str]) -> set[str]:
    """The algorithms that vLLM finds for a layer: one, none where it leaves it as it is, several where it refuses.

    Args:
        prefix: What vLLM calls the layer.
        layers: Algorithm by module.
    """
    if prefix in layers:
        return {layers[prefix]}
    parts = {layers[part] for part in members_of(prefix) if part in layers} if prefix.endswith(_FUSED) else set()
    if parts:
        return parts
    parents = (f"{prefix}.", f"{prefix.removesuffix(_EXPERTS)}.") if prefix.endswith(_EXPERTS) else (f"{prefix}.",)
    for parent in parents:
        below = next((own for name, own in layers.items() if name.startswith(parent)), None)
        if below is not None:
            return {below}
    return set()


def taken_by_trtllm(name: str, layers: Mapping[str, str]) -> set[str]:
    """The same for TensorRT-LLM, which takes the first entry that fits."""
    parent, _, last = name.rpartition(".")
    wanted: tuple[str, ...] = {
        "qkv_proj": (f"{parent}.q_proj",),
        "gate_up_proj": (f"{parent}.gate_proj", f"{parent}.gate_up_proj"),
        "experts": (name,),
    }.get(last, ())
    if not wanted:
        return {layers[name]} if name in layers else set()
    first = next((own for module, own in layers.items() if any(part in module for part in wanted)), None)
    return set() if first is None else {first}


def found_in(module: Module) -> set[str]:
    """What a layer's own tensors say it is; nothing where it is not quantized."""
    if not module.is_quantized:
        return set()
    weight = module.parts.get("weight")
    if weight is not None and weight.dtype == "F8_E4M3":
        return {"FP8"}
    return {"NVFP4" if "input_scale" in module.parts else "W4A16_NVFP4"}


def listed(algorithms: Collection[str]) -> str:
    """In words."""
    return " and ".join(sorted(algorithms)) or "not quantized"
