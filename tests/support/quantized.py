"""Checkpoints that are turned into quantized ones, with what their weights are then worth by torch's own rules."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.support.checkpoints import edit_config

Tensors = dict[str, torch.Tensor]
Pack = Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]
"""A weight [out, in] to its tensors, by what follows the module's name, and what they are worth in float32."""

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
BLOCK = (40, 48)
"""Rows and columns; the last block of every tiny weight is cut short."""


def pack_fp8(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = weight.abs().max() / 448
    codes = (weight / scale).to(torch.float8_e4m3fn)
    extra = {"input_scale": torch.tensor(0.5)}
    return {"weight": codes, "weight_scale": scale, **extra}, codes.float() * scale


def pack_fp8_by_row(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = (weight.abs().amax(dim=1, keepdim=True) / 448).bfloat16()
    codes = (weight / scale.float()).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scale}, codes.float() * scale.float()


def pack_fp8_in_blocks(weight: torch.Tensor, name: str = "weight_scale_inv") -> tuple[Tensors, torch.Tensor]:
    rows, columns = weight.shape
    scale = torch.zeros(-(-rows // BLOCK[0]), -(-columns // BLOCK[1]))
    worth, codes = torch.zeros_like(weight), torch.zeros_like(weight, dtype=torch.float8_e4m3fn)
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            part = (slice(i * BLOCK[0], (i + 1) * BLOCK[0]), slice(j * BLOCK[1], (j + 1) * BLOCK[1]))
            scale[i, j] = weight[part].abs().max() / 448
            codes[part] = (weight[part] / scale[i, j]).to(torch.float8_e4m3fn)
            worth[part] = codes[part].float() * scale[i, j]
    return {"weight": codes, name: scale}, worth


def pack_nvfp4(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    packed, scale, overall, worth = nvfp4(weight)
    extra = {"input_scale": torch.tensor(0.01)}
    return {"weight": packed, "weight_scale": scale, "weight_scale_2": overall, **extra}, worth


def pack_nvfp4_reciprocal(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    packed, scale, overall, _ = nvfp4(weight)
    reciprocal = (1 / overall).reshape(1)
    worth = unpack_nvfp4(packed, scale, 1 / reciprocal)
    extra = {"input_global_scale": torch.tensor([100.0])}
    return {"weight_packed": packed, "weight_scale": scale, "weight_global_scale": reciprocal, **extra}, worth


def nvfp4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    overall = weight.abs().max() / 2688
    blocks = weight.reshape(weight.shape[0], -1, 16)
    scale = (blocks.abs().amax(dim=-1) / (6 * overall)).clamp(2**-9, 448).to(torch.float8_e4m3fn)
    quotient = blocks / (scale.float() * overall)[..., None]
    codes = (quotient[..., None] - E2M1).abs().argmin(dim=-1).to(torch.uint8).reshape(weight.shape)
    packed = codes[:, ::2] | codes[:, 1::2] << 4
    return packed, scale, overall, unpack_nvfp4(packed, scale, overall)


def unpack_nvfp4(packed: torch.Tensor, scale: torch.Tensor, overall: torch.Tensor) -> torch.Tensor:
    codes = torch.stack([packed & 15, packed >> 4], dim=-1).reshape(packed.shape[0], -1, 16)
    return (E2M1[codes.int()] * (scale.float() * overall)[..., None]).reshape(packed.shape[0], -1)


def compressed(layout: str, **weights: Any) -> dict[str, Any]:
    """What compressed-tensors writes into config.json."""
    group = {"targets": ["Linear"], "weights": {"type": "float", "symmetric": True, "dynamic": False, **weights}}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
        "kv_cache_scheme": None,
        "sparsity_config": {},
        "transform_config": {},
        "global_compression_ratio": None,
        "version": "0.19.0",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One way to quantize."""

    pack: Pack
    config: dict[str, Any]


def modelopt(algorithm: str, **settings: Any) -> dict[str, Any]:
    return {
        "quant_method": "modelopt",
        "quant_algo": algorithm,
        "ignore": ["lm_head"],
        "producer": {"name": "modelopt", "version": "0.47.0"},
        "config_groups": {"group_0": {"targets": ["Linear"]}},
        "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
        **settings,
    }


FORMS = {
    "modelopt_fp8": Form(pack=pack_fp8, config=modelopt("FP8")),
    "modelopt_nvfp4": Form(pack=pack_nvfp4, config=modelopt("NVFP4", group_size=16)),
    "fp8": Form(pack=pack_fp8_in_blocks, config={"quant_method": "fp8", "weight_block_size": list(BLOCK)}),
    "compressed_fp8": Form(
        pack=pack_fp8, config=compressed("float-quantized", num_bits=8, strategy="tensor", group_size=None)
    ),
    "compressed_fp8_by_row": Form(
        pack=pack_fp8_by_row, config=compressed("float-quantized", num_bits=8, strategy="channel")
    ),
    "compressed_fp8_in_blocks": Form(
        pack=lambda weight: pack_fp8_in_blocks(weight, "weight_scale"),
        config=compressed("float-quantized", num_bits=8, strategy="block", block_structure=list(BLOCK)),
    ),
    "compressed_nvfp4": Form(
        pack=pack_nvfp4_reciprocal,
        config=compressed("nvfp4-pack-quantized", num_bits=4, strategy="tensor_group", group_size=16),
    ),
}


def quantize_folder(folder: Path, plain: Path, form: Form) -> None:
    """Quantize every projection of a folder in place, and write what it is worth then to another.

    Layer 0's attention is left as it is, as quantizers leave what a list of theirs names.
    """
    tensors = load_file(folder / "model.safetensors")
    packed, worth = dict(tensors), dict(tensors)
    for name, weight in tensors.items():
        if "_proj.weight" not in name or name.startswith("model.layers.0.self_attn"):
            continue
        parts, worth[name] = form.pack(weight.float())
        del packed[name]
        packed |= {name.removesuffix("weight") + part: value.contiguous() for part, value in parts.items()}
    packed["model.layers.0.self_attn.k_proj.k_scale"] = torch.tensor(0.7)
    save_file(packed, folder / "model.safetensors")
    edit_config(folder, quantization_config=form.config)
    plain.mkdir()
    (plain / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text())))
    edit_config(plain, quantization_config=None)
    save_file({name: value.contiguous() for name, value in worth.items()}, plain / "model.safetensors")


def pack_mxfp4(weights: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks and scales of gpt-oss's form for a stack of a shape [E, in, out], their contents random."""
    count, columns, rows = weights.shape
    blocks = torch.randint(0, 256, (count, rows, columns // 32, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(121, 126, blocks.shape[:-1], dtype=torch.uint8, generator=generator)
    return blocks, scales


def to_mxfp4(folder: Path, plain: Path) -> None:
    """Replace a gpt-oss folder's experts by random MXFP4 ones, and write what transformers makes of them to another."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    generator = torch.Generator().manual_seed(4)
    tensors = load_file(folder / "model.safetensors")
    packed, worth = dict(tensors), dict(tensors)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        blocks, scales = pack_mxfp4(tensors[name], generator)
        del packed[name]
        packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        worth[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).contiguous()
    save_file(packed, folder / "model.safetensors")
    plain.mkdir()
    (plain / "config.json").write_text((folder / "config.json").read_text())
    save_file(worth, plain / "model.safetensors")
    edit_config(folder, quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})


def modelopt_gpt_oss(folder: Path, plain: Path, form: Form) -> None:
    """Replace a gpt-oss folder's experts by packed stacks with modelopt's names, which lie transposed."""
    tensors = load_file(folder / "model.safetensors")
    packed, worth = dict(tensors), dict(tensors)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        # One overall scale for all experts, so they are packed as one matrix of all their rows.
        stack = tensors[name].float().transpose(1, 2)
        parts, value = form.pack(stack.reshape(-1, stack.shape[-1]))
        worth[name] = value.reshape(stack.shape).transpose(1, 2).contiguous()
        del packed[name]
        for part, tensor in parts.items():
            key = name if part == "weight" else f"{name}_{part}"
            is_stack = tensor.ndim == 2
            packed[key] = tensor.reshape(*stack.shape[:2], -1).transpose(1, 2).contiguous() if is_stack else tensor
    save_file(packed, folder / "model.safetensors")
    plain.mkdir()
    (plain / "config.json").write_text((folder / "config.json").read_text())
    save_file(worth, plain / "model.safetensors")
    edit_config(folder, quantization_config=form.config)
