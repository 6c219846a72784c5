"""What a checkpoint says about how its weights are quantized.

Source: `quantization_config` as transformers, modelopt 0.47 and compressed-tensors write it, and modelopt's
`hf_quant_config.json`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.accounting import Ignorable
from peagle_trt.readers.json_file import Fields, read_object
from peagle_trt.readers.ranges import Range

Spelling = Literal["mxfp4", "fp8", "fp8_inverse", "nvfp4", "nvfp4_reciprocal"]

HF_QUANT_CONFIG = "hf_quant_config.json"
SCALES_LEFT_OUT = (
    Ignorable(pattern=r".*[._]input_(global_)?scale", reason="activations are not quantized here"),
    Ignorable(pattern=r".*\.self_attn\.([kv]_proj\.)?[kv]_scale", reason="the cache of keys and values is float32"),
)
_BLOCK = Range(low=1, high=1 << 16)
_GROUP = Range(low=16, high=16)
# Keys that say nothing about the numbers of a weight: which modules are left alone shows in their tensors.
_NEUTRAL_KEYS = frozenset(
    {"quant_method", "modules_to_not_convert", "ignore", "exclude_modules", "producer", "version"}
)
_KNOWN_KEYS = {
    "mxfp4": frozenset({"dequantize"}),
    "fp8": frozenset({"activation_scheme", "fmt", "weight_block_size", "dequantize"}),
    "modelopt": frozenset({"quant_algo", "group_size", "config_groups", "kv_cache_scheme", "kv_cache_quant_algo"}),
    "compressed-tensors": frozenset(
        {
            "config_groups",
            "format",
            "global_compression_ratio",
            "kv_cache_scheme",
            "quantization_status",
            "sparsity_config",
            "transform_config",
        }
    ),
}
_MODELOPT_SPELLINGS: dict[str, Spelling] = {"FP8": "fp8", "NVFP4": "nvfp4", "W4A16_NVFP4": "nvfp4"}
_COMPRESSED_SPELLINGS: dict[str, Spelling] = {
    "float-quantized": "fp8",
    "naive-quantized": "fp8",
    "nvfp4-pack-quantized": "nvfp4_reciprocal",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """How the quantized ones among a checkpoint's weights are spelled.

    Attributes:
        spelling: `mxfp4`: gpt-oss's blocks and scales. `fp8`: `weight` and `weight_scale`; `fp8_inverse`: `weight` and
            `weight_scale_inv`, which multiplies all the same. `nvfp4`: `weight`, `weight_scale` and `weight_scale_2`;
            `nvfp4_reciprocal`: `weight_packed`, `weight_scale` and `weight_global_scale`, which divides.
        block: fp8 only; rows and columns that share a scale where scales are a matrix, 0 where they are not.
    """

    spelling: Spelling
    block: tuple[int, int] = (0, 0)


def read_quantization(folder: Path, config: Fields) -> Quantization | None:
    """How a checkpoint's weights are quantized, or None where they are not.

    Raises:
        CheckpointError: In a way that is not known.
    """
    own_file = folder / HF_QUANT_CONFIG
    if config.has("compression_config"):
        raise config.refuse(
            "compression_config", "absent", hint="save the checkpoint with a current compressed-tensors"
        )
    if config.has("quantization_config"):
        fields = config.section("quantization_config")
        _require_agreement(fields, own_file)
    elif own_file.exists():
        fields = read_object(own_file).section("quantization")
        return _read_modelopt(fields)
    else:
        return None
    match fields.text("quant_method"):
        case "mxfp4":
            _refuse_unknown_keys(fields, "mxfp4")
            return Quantization(spelling="mxfp4")
        case "fp8":
            return _read_fine_grained(fields)
        case "modelopt" | "modelopt_fp4":
            return _read_modelopt(fields)
        case "compressed-tensors":
            return _read_compressed(fields)
    raise fields.refuse("quant_method", _one_of(_KNOWN_KEYS), hint="use the checkpoint in F32, F16 or BF16")


def _require_agreement(fields: Fields, own_file: Path) -> None:
    """Refuse a modelopt folder whose two descriptions name different algorithms."""
    if not own_file.exists() or not fields.has("quant_algo"):
        return
    own = read_object(own_file).section("quantization").text("quant_algo")
    if own != fields.text("quant_algo"):
        raise fields.refuse("quant_algo", f"`{own}`, as `{HF_QUANT_CONFIG}` has it")


def _read_fine_grained(fields: Fields) -> Quantization:
    _refuse_unknown_keys(fields, "fp8")
    if fields.text("fmt", "e4m3") != "e4m3":
        raise fields.refuse("fmt", "`e4m3`")
    block = fields.integers("weight_block_size", within=_BLOCK)
    if len(block) not in (0, 2):
        raise fields.refuse("weight_block_size", "two whole numbers, rows and columns")
    return Quantization(spelling="fp8_inverse", block=(block[0], block[1]) if block else (0, 0))


def _read_modelopt(fields: Fields) -> Quantization:
    _refuse_unknown_keys(fields, "modelopt")
    algorithm = fields.text("quant_algo")
    if algorithm not in _MODELOPT_SPELLINGS:
        raise fields.refuse("quant_algo", _one_of(_MODELOPT_SPELLINGS))
    if _MODELOPT_SPELLINGS[algorithm] == "nvfp4":
        fields.integer("group_size", 16, within=_GROUP)
    return Quantization(spelling=_MODELOPT_SPELLINGS[algorithm])


def _read_compressed(fields: Fields) -> Quantization:
    _refuse_unknown_keys(fields, "compressed-tensors")
    layout = fields.text("format")
    if layout not in _COMPRESSED_SPELLINGS:
        raise fields.refuse("format", _one_of(_COMPRESSED_SPELLINGS))
    if fields.text("quantization_status", "compressed") != "compressed":
        raise fields.refuse("quantization_status", "`compressed`")
    for key in ("transform_config", "sparsity_config"):
        if fields.has(key) and fields.section(key).values not in ({}, {"format": "dense"}):
            raise fields.refuse(key, "empty", hint="rotated and pruned weights are not supported")
    groups = fields.section("config_groups")
    blocks = {_read_group(groups.section(name), layout) for name in groups.values}
    if len(blocks) != 1:
        raise fields.refuse("config_groups", "groups that are quantized alike")
    return Quantization(spelling=_COMPRESSED_SPELLINGS[layout], block=blocks.pop())


def _read_group(group: Fields, layout: str) -> tuple[int, int]:
    """Check one group of modules; rows and columns that share a scale."""
    if group.text("format", layout) != layout:
        raise group.refuse("format", f"`{layout}`, as outside the group")
    weights = group.section("weights")
    bits = 4 if _COMPRESSED_SPELLINGS[layout] == "nvfp4_reciprocal" else 8
    weights.integer("num_bits", within=Range(low=bits, high=bits))
    if weights.text("type") != "float":
        raise weights.refuse("type", "`float`")
    if not weights.flag("symmetric", default=True):
        raise weights.refuse("symmetric", "true")
    strategies = ("tensor_group",) if bits == 4 else ("tensor", "channel", "block")
    strategy = weights.text("strategy")
    if strategy not in strategies:
        raise weights.refuse("strategy", _one_of(strategies))
    if bits == 4:
        weights.integer("group_size", within=_GROUP)
    if strategy == "block":
        block = weights.integers("block_structure", within=_BLOCK)
        if len(block) != 2:
            raise weights.refuse("block_structure", "two whole numbers, rows and columns")
        return block[0], block[1]
    return (0, 0)


def _refuse_unknown_keys(fields: Fields, method: str) -> None:
    unknown = sorted(key for key in fields.values if key not in _KNOWN_KEYS[method] | _NEUTRAL_KEYS and fields.has(key))
    if unknown:
        raise CheckpointError(
            f"`{fields.source}`: `{fields.path}{unknown[0]}` is not understood for weights quantized as `{method}`",
            hint=f"understood: {', '.join(sorted(_KNOWN_KEYS[method]))}",
        )


def _one_of(names: object) -> str:
    assert isinstance(names, dict | tuple)
    return " or ".join(f"`{name}`" for name in names)
