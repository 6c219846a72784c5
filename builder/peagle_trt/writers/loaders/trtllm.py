"""Rules of TensorRT-LLM's PyTorch backend.

Source: TensorRT-LLM 1.3 `_torch/model_config.py`, `quantization/modelopt_config.py`, `quantization/mode.py` (names of
algorithms, whose case counts), `models/modeling_utils.py` (`is_module_excluded_from_quantization`, in its older form
and in the newer one that looks at ancestors), `_torch/models/modeling_utils.py` (fused layers); pull request 8956 for
gpt-oss in NVFP4.
"""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Sequence

from peagle_trt.readers import Finding
from peagle_trt.readers.findings import judged
from peagle_trt.writers.fused import fused_name, members_of
from peagle_trt.writers.loaders.folder import Description, QuantizedFolder, description
from peagle_trt.writers.loaders.mixed import found_in, is_mixed, listed, taken_by_trtllm
from peagle_trt.writers.loaders.tensors import summed

_ALGORITHMS = (
    "FP8",
    "NVFP4",
    "W4A16_NVFP4",
    "FP8_BLOCK_SCALES",
    "fp8_pb_wo",
    "W4A16_MXFP4",
    "W4A8_MXFP4_MXFP8",
    "W4A8_MXFP4_FP8",
    "W4A16_AWQ",
    "W4A8_AWQ",
    "MXFP8",
    "MIXED_PRECISION",
)
_METHODS = ("fp8", "mxfp4", "mxfp8", "nvfp4", "compressed-tensors")


def judge_trtllm(folder: QuantizedFolder) -> list[Finding]:
    """Whether TensorRT-LLM would load the folder."""
    told = description(folder, prefers_twin=False)
    if folder.quant_file is None and told.method in _METHODS:
        return [Finding(level="ok", what="TensorRT-LLM: quant_method", found=told.method, expected=_listed(_METHODS))]
    is_known = told.algorithm in _ALGORITHMS
    findings = [
        judged(
            is_known,
            "TensorRT-LLM: quant_algo",
            found=told.algorithm or "none",
            expected=_listed(_ALGORITHMS),
            hint="the case of letters counts",
        )
    ]
    if any(module.is_stack for module in folder.modules.values()):
        # Its class for gpt-oss renames modules, and the patterns with them.
        what = "TensorRT-LLM: layers left out"
        found = "names of gpt-oss, which it translates by a table of its own"
        return [*findings, Finding(level="note", what=what, found=found, expected="not judged")]
    if is_mixed(told.algorithm):
        return [*findings, _judge_mixed(folder, told)]
    return [*findings, _judge_left_out(folder, told.left_out)]


def is_left_out(module: str, patterns: Sequence[str], *, looks_at_ancestors: bool) -> bool:
    """Whether a fused layer is left unquantized: it is when any of its parts is.

    Args:
        module: Name of the layer, fused.
        patterns: What the checkpoint leaves out.
        looks_at_ancestors: A pattern that fits a layer's parent fits the layer, as in newer releases.
    """
    names = {module, *(members_of(module) if module.endswith(("qkv_proj", "gate_up_proj")) else ())}
    if looks_at_ancestors:
        parts = module.split(".")
        names |= {".".join(parts[:count]) for count in range(1, len(parts))}
    return any(_fits(name, pattern) for name in names for pattern in patterns)


def _fits(name: str, pattern: str) -> bool:
    if pattern.startswith("re:"):
        return re.fullmatch(pattern[3:], name) is not None
    return fnmatch.fnmatchcase(name, pattern)


def _judge_left_out(folder: QuantizedFolder, patterns: Sequence[str]) -> Finding:
    faults = []
    judge = functools.cache(
        lambda name: {is_left_out(name, patterns, looks_at_ancestors=looks) for looks in (False, True)}
    )
    for module in folder.modules.values():
        if module.name.endswith("embed_tokens") and not module.is_quantized:
            continue
        if judge(_name_of(folder, module.name)) != {not module.is_quantized}:
            state = "quantized but left out" if module.is_quantized else "left as it is, but not left out"
            faults.append(f"`{module.name}` is {state}")
    return summed(
        "TensorRT-LLM: layers left out",
        faults,
        f"{len(patterns):,} patterns fit all {len(folder.modules):,} layers",
        "exactly the layers that are not quantized, by older and newer releases",
        hint="codes would be read as numbers, or numbers as codes",
    )


def _judge_mixed(folder: QuantizedFolder, told: Description) -> Finding:
    """Where layers differ: what no entry is found for is left as it is, and exclusions count last."""
    faults = [] if told.layers else ["no `quantized_layers`"]

    def taken(name: str) -> set[str]:
        left_out = any(is_left_out(name, told.left_out, looks_at_ancestors=looks) for looks in (False, True))
        return set() if left_out else taken_by_trtllm(name, told.layers)

    judge = functools.cache(taken)
    for module in folder.modules.values() if told.layers else ():
        if module.name.endswith("embed_tokens") and not module.is_quantized:
            continue
        found = judge(_name_of(folder, module.name))
        if found != found_in(module):
            faults.append(f"`{module.name}` is {listed(found_in(module))}, and {listed(found)} by the description")
    return summed(
        "TensorRT-LLM: algorithms of layers",
        faults,
        f"{len(told.layers):,} entries fit all {len(folder.modules):,} layers",
        "what each layer's tensors are",
    )


def _name_of(folder: QuantizedFolder, module: str) -> str:
    """Its own name of the layer that a module becomes a part of."""
    fused = fused_name(module)
    if not folder.is_head or fused == "lm_head":
        return fused
    return f"model.{fused}"


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words)
