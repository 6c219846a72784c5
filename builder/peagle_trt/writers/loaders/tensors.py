"""Rules that every loader has for the tensors of a quantized layer.

Source: vLLM 0.32 `modelopt.py`, TensorRT-LLM 1.3 `linear.py`, and public reports of what went wrong without an error:
vLLM issues 54189 (no input scale reads as 0), 54974 and pull request 56095 (gate and up apart), TensorRT-LLM issue
16867 (a value's scale missing), Model-Optimizer pull request 1382 (block scales of 0).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from peagle_trt.readers import Finding
from peagle_trt.readers.findings import judged
from peagle_trt.readers.packed import MXFP4_BLOCK, NVFP4_BLOCK
from peagle_trt.readers.safetensors_file import load_tensor
from peagle_trt.spec import TensorSpec
from peagle_trt.writers.fused import group_of
from peagle_trt.writers.loaders.folder import Description, Module, QuantizedFolder, description
from peagle_trt.writers.loaders.mixed import is_mixed

_SCALAR_SHAPES = ((), (1,))
_LARGEST_GLOBAL_SCALE = 1.0
"""Weights with an overall scale above it would exceed 2688; where they do, the reciprocal was stored."""
_NEEDED = {
    "FP8": ("weight_scale", "input_scale"),
    "NVFP4": ("weight_scale", "weight_scale_2", "input_scale"),
    "W4A16_NVFP4": ("weight_scale", "weight_scale_2"),
}


def judge_tensors(folder: QuantizedFolder) -> list[Finding]:
    """What must hold whoever loads the folder."""
    told = description(folder, prefers_twin=False)
    algorithm = told.algorithm.upper()
    modules = folder.quantized()
    return [
        _judge_agreement(folder),
        summed("layers that are quantized", [] if modules else ["none"], f"{len(modules):,}", "at least one"),
        summed(
            "tensors of quantized layers",
            [
                fault
                for module in modules
                for fault in _faults(module, told.layers.get(module.name, "") if is_mixed(algorithm) else algorithm)
            ],
            f"{len(modules):,} layers with all their tensors",
            "types and shapes of the algorithm, every scale there",
            hint="without an input scale loaders read 0 and every output is 0; W4A16_NVFP4 needs none",
        ),
        summed(
            "scales",
            [fault for spec in _scalars(folder) for fault in _scale_faults(spec)],
            "finite and positive",
            "finite and positive numbers",
        ),
        _judge_groups(modules),
        *_judge_cache(folder, told),
    ]


def _judge_agreement(folder: QuantizedFolder) -> Finding:
    what = "agreement of hf_quant_config.json and config.json"
    if folder.twin is None or folder.quant_file is None or folder.twin.get("quant_method") == "mxfp4":
        return Finding(level="ok", what=what, found="only one describes the weights", expected="one, or two that agree")
    own, twin = description(folder, prefers_twin=False), description(folder, prefers_twin=True)
    pairs = {
        "quant_algo": (own.algorithm, twin.algorithm),
        "cache": (own.cache, twin.cache),
        "exclude_modules": (sorted(own.left_out), sorted(twin.left_out)),
    }
    faults = [f"{key}: {left} and {right}" for key, (left, right) in pairs.items() if left != right]
    names = sorted(name for name in {*own.layers, *twin.layers} if own.layers.get(name) != twin.layers.get(name))
    faults += [f"quantized_layers: `{name}`" for name in names]
    hint = "vLLM goes by config.json, TensorRT-LLM by hf_quant_config.json"
    return summed(what, faults, "they agree", "the same in both", hint=hint)


def _faults(module: Module, algorithm: str) -> Iterator[str]:
    """What is wrong with one layer's tensors."""
    parts = module.parts
    if "blocks" in parts or "scales" in parts:
        yield from _mxfp4_faults(module)
        return
    if "weight_packed" in parts or "weight_global_scale" in parts:
        yield f"`{module.name}` has names of compressed-tensors, whose overall scale is a reciprocal"
        return
    weight = parts.get("weight")
    if weight is None:
        yield f"`{module.name}` has scales but no weight"
        return
    if not algorithm:
        yield f"`{module.name}` is quantized, and `quantized_layers` does not name it"
        return
    for part in _NEEDED.get(algorithm, ()):
        if part not in parts:
            yield f"`{module.name}` lacks `{part}`"
    dtype = "F8_E4M3" if algorithm == "FP8" else "U8"
    if weight.dtype != dtype:
        yield f"`{weight.name}` is {weight.dtype}, not {dtype}"
    yield from _scale_shape_faults(module, weight, algorithm)


def _scale_shape_faults(module: Module, weight: TensorSpec, algorithm: str) -> Iterator[str]:
    parts = module.parts
    names = ("input_scale", "weight_scale") if algorithm == "FP8" else ("input_scale", "weight_scale_2")
    for part in names:
        if part in parts and (parts[part].shape not in _SCALAR_SHAPES or parts[part].dtype != "F32"):
            yield f"`{parts[part].name}` is {parts[part].dtype} {list(parts[part].shape)}, not one F32 number"
    if algorithm == "FP8" or "weight_scale" not in parts:
        return
    axis = 1 if module.is_stack else len(weight.shape) - 1
    shape = list(weight.shape)
    shape[axis] = shape[axis] * 2 // NVFP4_BLOCK
    scales = parts["weight_scale"]
    if scales.dtype != "F8_E4M3" or list(scales.shape) != shape or weight.shape[axis] * 2 % NVFP4_BLOCK:
        yield f"`{scales.name}` is {scales.dtype} {list(scales.shape)}, not F8_E4M3 {shape}"


def _mxfp4_faults(module: Module) -> Iterator[str]:
    blocks, scales = module.parts.get("blocks"), module.parts.get("scales")
    if blocks is None or scales is None:
        yield f"`{module.name}` lacks its {'blocks' if blocks is None else 'scales'}"
    elif blocks.shape != (*scales.shape, MXFP4_BLOCK // 2) or scales.dtype != "U8":
        yield f"`{blocks.name}` {list(blocks.shape)} and `{scales.name}` {list(scales.shape)} do not belong together"


def _scalars(folder: QuantizedFolder) -> list[TensorSpec]:
    return [
        spec
        for name, spec in folder.tensors.items()
        if spec.dtype == "F32" and spec.shape in _SCALAR_SHAPES and name.endswith(("_scale", "_scale_2"))
    ]


def _scale_faults(spec: TensorSpec) -> Iterator[str]:
    value = float(load_tensor(spec).reshape(()))
    if not (math.isfinite(value) and value > 0):
        yield f"`{spec.name}` is {value:g}"
    elif spec.name.endswith("weight_scale_2") and value > _LARGEST_GLOBAL_SCALE:
        yield f"`{spec.name}` is {value:g}, which looks like a reciprocal"


def _judge_groups(modules: Sequence[Module]) -> Finding:
    """Layers that are multiplied as one have one overall scale in NVFP4; in FP8 loaders bring them to the largest."""
    first: dict[str, tuple[str, float]] = {}
    faults = []
    for module in modules:
        spec = module.parts.get("weight_scale_2")
        if spec is None or spec.shape not in _SCALAR_SHAPES:
            continue
        value = float(load_tensor(spec).reshape(()))
        name, other = first.setdefault(group_of(module.name), (module.name, value))
        if not np.isclose(value, other, rtol=1e-6, atol=0):
            faults.append(f"`{name}` has {other:g} and `{module.name}` {value:g}")
    return summed(
        "overall scales of fused layers",
        faults,
        f"{len(first):,} groups with one each",
        "one number for queries, keys and values, and one for gate and up",
        hint="loaders take one of them for all; quantize again with `convert --recipe`",
    )


def _judge_cache(folder: QuantizedFolder, told: Description) -> list[Finding]:
    found = [name for name in folder.tensors if name.endswith((".k_scale", ".v_scale"))]
    if not told.cache and not found:
        return []
    if not told.cache:
        return [
            Finding(
                level="warning",
                what="scales of the cache",
                found=f"{len(found):,}, but {told.source} names no type of the cache",
                expected="`kv_cache_quant_algo`",
                hint="loaders leave the cache as it is",
            )
        ]
    attentions = sorted({name.rpartition(".")[0] for name in folder.modules if name.endswith((".k_proj", ".v_proj"))})
    faults = []
    for attention in attentions:
        for part in "kv":
            spellings = (f"{attention}.{part}_proj.{part}_scale", f"{attention}.{part}_scale")
            if not any(spelling in folder.tensors for spelling in spellings):
                faults.append(f"`{attention}` lacks `{part}_scale`")
    expected = "a scale of keys and one of values in every layer"
    return [summed("scales of the cache", faults, f"{len(attentions):,} layers with both", expected)]


def summed(what: str, faults: Sequence[str], found: str, expected: str, hint: str = "") -> Finding:
    """One finding for all layers: the first fault, and how many more there are."""
    more = f" and {len(faults) - 1:,} more" if len(faults) > 1 else ""
    return judged(not faults, what, found=f"{faults[0]}{more}" if faults else found, expected=expected, hint=hint)
