"""The two descriptions of a quantized checkpoint: `hf_quant_config.json`, and its twin inside `config.json`.

Source: ModelOpt 0.47 `export_hf_checkpoint`, whose name of a producer TensorRT-LLM and vLLM look for; vLLM 0.32
`modelopt.py` for the keys that it requires (`kv_cache_quant_algo` too, if only as null).
"""

from __future__ import annotations

from collections.abc import Sequence

from peagle_trt.quant.layer_recipes import Algorithm, CacheForm
from peagle_trt.readers.packed import NVFP4_BLOCK

_PRODUCER = {"name": "modelopt", "version": "0.47.0"}
"""Whose layout this is; loaders ask for the name."""


def quant_file(algorithm: Algorithm, cache: CacheForm, left_out: Sequence[str]) -> dict[str, object]:
    """What `hf_quant_config.json` says.

    Args:
        algorithm: Of all layers that are not left out.
        cache: Form of the cache.
        left_out: Patterns of modules' names.
    """
    quantization: dict[str, object] = {
        "quant_algo": algorithm,
        "kv_cache_quant_algo": "FP8" if cache == "fp8" else None,
    }
    if algorithm != "FP8":
        quantization["group_size"] = NVFP4_BLOCK
    return {"producer": _PRODUCER, "quantization": quantization | {"exclude_modules": list(left_out)}}


def config_twin(algorithm: Algorithm, cache: CacheForm, left_out: Sequence[str]) -> dict[str, object]:
    """What `config.json` says under `quantization_config`; arguments as for `quant_file`."""
    number: dict[str, object] = {"dynamic": False, "num_bits": 8 if algorithm == "FP8" else 4, "type": "float"}
    if algorithm != "FP8":
        number["group_size"] = NVFP4_BLOCK
    group: dict[str, object] = {"weights": number, "targets": ["Linear"]}
    group["input_activations"] = None if algorithm == "W4A16_NVFP4" else number
    twin: dict[str, object] = {
        "config_groups": {"group_0": group},
        "ignore": list(left_out),
        "quant_algo": algorithm,
        "producer": _PRODUCER,
        "quant_method": "modelopt",
    }
    if algorithm != "FP8":
        twin["group_size"] = NVFP4_BLOCK
    if cache == "fp8":
        twin["kv_cache_scheme"] = {"dynamic": False, "num_bits": 8, "type": "float"}
    return twin
