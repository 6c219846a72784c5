"""The two descriptions of a quantized checkpoint: `hf_quant_config.json`, and its twin inside `config.json`.

Source: ModelOpt 0.47 `export_hf_checkpoint`, whose name of a producer TensorRT-LLM and vLLM look for; vLLM 0.32
`modelopt.py` for the keys that it requires (`kv_cache_quant_algo` too, if only as null).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from peagle_trt.quant.layer_recipes import MIXED, Algorithm, CacheForm
from peagle_trt.readers.packed import NVFP4_BLOCK

_PRODUCER = {"name": "modelopt", "version": "0.47.0"}
"""Whose layout this is; loaders ask for the name."""


def quant_file(
    algorithm: Algorithm, cache: CacheForm, left_out: Sequence[str], layers: Mapping[str, Algorithm]
) -> dict[str, object]:
    """What `hf_quant_config.json` says.

    Args:
        algorithm: Of all layers that are not left out.
        cache: Form of the cache.
        left_out: Patterns of modules' names.
        layers: The algorithm of each layer that is quantized; told where they differ.
    """
    quantization: dict[str, object] = {
        "quant_algo": algorithm,
        "kv_cache_quant_algo": "FP8" if cache == "fp8" else None,
    }
    if algorithm != "FP8":
        quantization["group_size"] = NVFP4_BLOCK
    if algorithm == MIXED:
        quantization["quantized_layers"] = _layers(layers)
    return {"producer": _PRODUCER, "quantization": quantization | {"exclude_modules": list(left_out)}}


def config_twin(
    algorithm: Algorithm, cache: CacheForm, left_out: Sequence[str], layers: Mapping[str, Algorithm]
) -> dict[str, object]:
    """What `config.json` says under `quantization_config`; arguments as for `quant_file`."""
    if algorithm == MIXED:
        targets: dict[Algorithm, list[str]] = {}
        for module, own in layers.items():
            targets.setdefault(own, []).append(module)
    else:
        targets = {algorithm: ["Linear"]}
    groups = {f"group_{index}": _group(own, names) for index, (own, names) in enumerate(targets.items())}
    twin: dict[str, object] = {
        "config_groups": groups,
        "ignore": list(left_out),
        "quant_algo": algorithm,
        "producer": _PRODUCER,
        "quant_method": "modelopt",
    }
    if algorithm != "FP8":
        twin["group_size"] = NVFP4_BLOCK
    if cache == "fp8":
        twin["kv_cache_scheme"] = {"dynamic": False, "num_bits": 8, "type": "float"}
    if algorithm == MIXED:
        twin["quantized_layers"] = _layers(layers)
    return twin


def _group(algorithm: Algorithm, targets: list[str]) -> dict[str, object]:
    number: dict[str, object] = {"dynamic": False, "num_bits": 8 if algorithm == "FP8" else 4, "type": "float"}
    if algorithm != "FP8":
        number["group_size"] = NVFP4_BLOCK
    return {
        "weights": number,
        "targets": targets,
        "input_activations": None if algorithm == "W4A16_NVFP4" else number,
    }


def _layers(layers: Mapping[str, Algorithm]) -> dict[str, dict[str, object]]:
    size: dict[str, object] = {"group_size": NVFP4_BLOCK}
    return {module: {"quant_algo": own} | ({} if own == "FP8" else size) for module, own in layers.items()}
