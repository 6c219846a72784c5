"""Rules of vLLM.

Source: vLLM 0.32 `layers/quantization/modelopt.py` (algorithms, `is_layer_excluded`, keys that NVFP4 requires),
`quant_utils.is_layer_skipped`, `models/llama_eagle3.py` (a drafter's names), `models/gpt_oss.py` (experts' names).
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Sequence

from peagle_trt.readers import Finding
from peagle_trt.readers.findings import judged
from peagle_trt.writers.fused import fused_name, members_of
from peagle_trt.writers.loaders.folder import Description, QuantizedFolder, description
from peagle_trt.writers.loaders.mixed import MIXED_ALGORITHMS, found_in, is_mixed, listed, taken_by_vllm
from peagle_trt.writers.loaders.tensors import summed

_ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "W4A16_NVFP4", "MXFP8", "MIXED_PRECISION")
_REQUIRED_BY_NVFP4 = ("group_size", "kv_cache_quant_algo", "exclude_modules")
_TARGET_LAYERS = 48
"""vLLM numbers a drafter's layers on from its target's; which number that is changes nothing here."""


def judge_vllm(folder: QuantizedFolder) -> list[Finding]:
    """Whether vLLM would load the folder."""
    told = description(folder, prefers_twin=True)
    if told.method == "mxfp4":
        return [_judge_packed_experts(folder)]
    findings = [
        judged(
            told.algorithm.upper() in _ALGORITHMS,
            "vLLM: quant_algo",
            found=told.algorithm or "none",
            expected=", ".join(_ALGORITHMS),
        ),
        judged(
            told.method.lower().startswith("modelopt") or (not told.method and _names_modelopt(told)),
            "vLLM: quant_method",
            found=told.method or "none",
            expected="`modelopt`, or a producer of that name in hf_quant_config.json alone",
        ),
        *_judge_keys(told),
        _judge_mixed(folder, told) if is_mixed(told.algorithm) else _judge_left_out(folder, told.left_out),
        *_judge_cache(folder, told),
    ]
    return findings + (_judge_head(folder) if folder.is_head else _judge_stacks(folder))


def is_left_out(prefix: str, patterns: Sequence[str]) -> bool:
    """Whether vLLM leaves a layer unquantized: named itself or by all its parts, by a substring, or by a wildcard."""
    parts = members_of(prefix) if prefix.endswith(("qkv_proj", "gate_up_proj")) else (prefix,)
    if prefix in patterns or all(part in patterns for part in parts):
        return True
    return any(pattern in prefix or fnmatch.fnmatch(prefix, pattern) for pattern in patterns)


def prefixes_of(folder: QuantizedFolder, module: str) -> tuple[str, ...]:
    """What vLLM calls the layer that a module becomes a part of; for heads in older and newer versions."""
    fused = fused_name(module)
    if not folder.is_head:
        return (fused,)
    plain = fused.removeprefix("midlayer.")
    if plain != fused:
        fused = f"layers.0.{plain}"
    if not fused.startswith("layers."):
        return (fused if fused == "lm_head" else f"model.{fused}",)
    _, index, rest = fused.split(".", 2)
    named = f"model.layers.{_TARGET_LAYERS + int(index)}."
    return (named + rest, named + rest.replace("self_attn.qkv_proj", "qkv_proj"))


def _judge_left_out(folder: QuantizedFolder, patterns: Sequence[str]) -> Finding:
    faults = []
    judge = functools.cache(lambda prefix: is_left_out(prefix, patterns))
    for module in folder.modules.values():
        if module.name.endswith("embed_tokens") and not module.is_quantized:
            continue
        for prefix in prefixes_of(folder, module.name):
            if judge(prefix) == module.is_quantized:
                state = "quantized but left out" if module.is_quantized else "left as it is, but not left out"
                faults.append(f"`{module.name}` is {state}, as `{prefix}`")
                break
    return summed(
        "vLLM: layers left out",
        faults,
        f"{len(patterns):,} patterns fit all {len(folder.modules):,} layers",
        "exactly the layers that are not quantized; an entry counts as a substring too",
        hint="codes would be read as numbers, or numbers as codes",
    )


def _judge_mixed(folder: QuantizedFolder, told: Description) -> Finding:
    """Where layers differ: an exclusion counts first, and what no entry is found for is left as it is."""
    if not told.layers:
        return summed("vLLM: algorithms of layers", ["no `quantized_layers`"], "", "one for each quantized layer")
    unknown = sorted(set(told.layers.values()) - set(MIXED_ALGORITHMS))
    faults = [f"`{each or 'nothing'}` is no algorithm of a layer" for each in unknown]
    judge = functools.cache(
        lambda prefix: frozenset() if is_left_out(prefix, told.left_out) else taken_by_vllm(prefix, told.layers)
    )
    for module in folder.modules.values():
        if module.name.endswith("embed_tokens") and not module.is_quantized:
            continue
        for prefix in prefixes_of(folder, module.name):
            found, taken = found_in(module), judge(prefix)
            if found != taken:
                faults.append(f"`{module.name}` is {listed(found)}, and {listed(taken)} as `{prefix}`")
                break
    return summed(
        "vLLM: algorithms of layers",
        faults,
        f"{len(told.layers):,} entries fit all {len(folder.modules):,} layers",
        "what each layer's tensors are",
        hint="a head's layers are numbered on from its target's, which no entry can know",
    )


def _judge_keys(told: Description) -> list[Finding]:
    inner = told.raw.get("quantization")
    if not isinstance(inner, dict) or "NVFP4" not in told.algorithm.upper():
        return []
    missing = [key for key in _REQUIRED_BY_NVFP4 if key not in inner]
    return [summed("vLLM: keys of NVFP4", missing, "all there", ", ".join(_REQUIRED_BY_NVFP4))]


def _judge_cache(folder: QuantizedFolder, told: Description) -> list[Finding]:
    own = description(folder, prefers_twin=False)
    if own.cache.upper() != "NVFP4" or told.source != "config.json":
        return []
    return [
        Finding(
            level="refused",
            what="vLLM: type of the cache",
            found="NVFP4 in hf_quant_config.json, which config.json has no word for",
            expected="FP8",
            hint="vLLM reads config.json and would leave the cache as it is",
        )
    ]


def _judge_stacks(folder: QuantizedFolder) -> list[Finding]:
    """gpt-oss's stacks with ModelOpt's names, whose scales vLLM 0.32 passes over (vLLM issue 46641)."""
    stacks = [module.name for module in folder.quantized() if module.is_stack]
    if not stacks:
        return []
    return [
        Finding(
            level="refused",
            what="vLLM: names of experts",
            found=f"`{stacks[0]}_weight_scale`, which vLLM 0.32 passes over in silence",
            expected="MXFP4 blocks and scales, the layout it reads gpt-oss in",
            hint="serve gpt-oss in vLLM as it was published; TensorRT-LLM reads these names",
        )
    ]


def _judge_packed_experts(folder: QuantizedFolder) -> Finding:
    others = [f"`{module.name}`" for module in folder.quantized() if "blocks" not in module.parts]
    return summed("vLLM: layers beside MXFP4 experts", others, "all as they are", "no other layer quantized")


def _judge_head(folder: QuantizedFolder) -> list[Finding]:
    if not folder.config.get("parallel_drafting"):
        return []
    return [
        judged(
            "mask_hidden" in folder.tensors,
            "vLLM: masked state",
            found="`mask_hidden`" if "mask_hidden" in folder.tensors else "none",
            expected="`mask_hidden`, since `parallel_drafting` is set",
        )
    ]


def _names_modelopt(told: Description) -> bool:
    producer = told.raw.get("producer")
    return isinstance(producer, dict) and producer.get("name") == "modelopt"
