"""What each recipe stores, and who takes it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from peagle_trt import pipeline
from peagle_trt.errors import CheckpointError, UsageError
from peagle_trt.quant import (
    BUILD_RECIPES,
    choose_recipe,
    open_stored,
    plan_storage,
    require_recipe,
    store_drafter,
    store_target,
)
from peagle_trt.quant.store import stored_bytes
from peagle_trt.readers import read_drafter, read_target
from peagle_trt.readers.safetensors_file import load_tensor
from peagle_trt.spec import BuildSpec
from peagle_trt.verify.sources import build_source
from tests.support.checkpoints import edit_tensors
from tests.support.models import save_drafter, save_target
from tests.support.quantized import nvfp4, to_mxfp4

PROJECTIONS = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
LAYERS = 6


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    save_target(tmp_path / "target")
    save_drafter(tmp_path / "head", draft_vocab_size=120)
    return tmp_path


def store(folder: Path, precision: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Tensors of target and drafter as stored, read by the format's own library."""
    target, drafter = read_target(folder / "target"), read_drafter(folder / "head")
    out = folder / precision
    out.mkdir()
    store_target(precision, target, out / "target.safetensors")
    store_drafter(precision, drafter, target, out / "drafter.safetensors")
    return load_file(out / "target.safetensors"), load_file(out / "drafter.safetensors")


def fused(folder: Path, *parts: str) -> torch.Tensor:
    tensors = load_file(folder / "target" / "model.safetensors")
    return torch.cat([tensors[f"model.layers.2.{part}.weight"] for part in parts]).float()


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_halves_are_the_nearest_of_float32(pair: Path, precision: str, dtype: torch.dtype) -> None:
    whole, half = store(pair, "fp32"), store(pair, precision)
    for full, found in zip(whole, half, strict=True):
        assert full.keys() >= {name for name in found if not name.startswith("padding.")}
        for name in set(found) - {"fused_mask_hidden", "draft_to_target"}:
            if not name.startswith("padding."):
                torch.testing.assert_close(found[name], full[name].to(dtype), rtol=0, atol=0)
    # What a build computes is small, and stays whole.
    assert half[1]["fused_mask_hidden"].dtype == torch.float32


def test_fp8_takes_the_projections_of_both_and_nothing_else(pair: Path) -> None:
    target, drafter = store(pair, "fp8")
    codes = {name for name, tensor in target.items() if tensor.dtype == torch.float8_e4m3fn}
    assert codes == {f"layers.{layer}.{name}" for layer in range(LAYERS) for name in PROJECTIONS}
    assert {target[f"{name}.row_input_scale"].item() for name in codes} == {1.0}
    assert target["layers.2.input_norm"].dtype == target["embed_tokens"].dtype == torch.bfloat16
    own = {name for name, tensor in drafter.items() if tensor.dtype == torch.float8_e4m3fn}
    assert own == {f"layers.{layer}.{name}" for layer in range(2) for name in PROJECTIONS}
    assert drafter["fc"].dtype == drafter["lm_head"].dtype == torch.bfloat16


def test_fp8_is_what_torch_makes_of_the_fused_matrix(pair: Path) -> None:
    target, _ = store(pair, "fp8")
    matrix = fused(pair, "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    scale = matrix.abs().max() / 448
    assert target["layers.2.qkv_proj.scale"] == scale
    expected = (matrix / scale).to(torch.float8_e4m3fn)
    assert torch.equal(target["layers.2.qkv_proj"].view(torch.uint8), expected.view(torch.uint8))


def test_nvfp4_gives_gate_and_up_one_global_scale(pair: Path) -> None:
    target, _ = store(pair, "nvfp4")
    _, scales, overall, worth = nvfp4(fused(pair, "mlp.gate_proj", "mlp.up_proj"))
    name = "layers.2.gate_up_proj"
    assert torch.equal(target[f"{name}.global_scale"], overall)
    assert torch.equal(target[f"{name}.block_scales"].view(torch.uint8), scales.view(torch.uint8))
    assert target[name].shape == (worth.shape[0], worth.shape[1] // 2)
    assert target[f"{name}.row_input_scale"] == 1.0


def test_nvfp4_takes_experts_as_weights_alone(tmp_path: Path) -> None:
    save_target(tmp_path / "target", "Qwen3MoeForCausalLM")
    save_drafter(tmp_path / "head")
    target, _ = store(tmp_path, "nvfp4")
    stack = target["layers.1.experts_gate_up_proj"]
    assert (stack.dtype, tuple(stack.shape)) == (torch.uint8, (16, 64, 32))
    assert target["layers.1.experts_gate_up_proj.block_scales"].shape == (16, 64, 4)
    assert "layers.1.experts_gate_up_proj.input_scale" not in target
    assert target["layers.1.router"].dtype == torch.bfloat16


def test_columns_that_make_no_blocks_are_named(tmp_path: Path) -> None:
    save_target(tmp_path / "target", intermediate_size=72)
    with pytest.raises(CheckpointError, match=r"`layers.0.down_proj` has 72 columns, which blocks of 16 do not divide"):
        store_target("nvfp4", read_target(tmp_path / "target"), tmp_path / "out.safetensors")


def test_a_number_too_large_for_float16_is_refused_by_name(pair: Path) -> None:
    edit_tensors(pair / "target", model__norm__weight=np.full(64, 1e5, np.float32))
    with pytest.raises(CheckpointError, match="`norm` holds 100000"):
        store(pair, "fp16")


@pytest.mark.parametrize("precision", ["bf16", "fp8", "nvfp4"])
def test_experts_in_mxfp4_stay_in_the_checkpoint_s_file(tmp_path: Path, precision: str) -> None:
    save_target(tmp_path / "target", "GptOssForCausalLM", hidden_size=64, intermediate_size=32)
    to_mxfp4(tmp_path / "target", tmp_path / "plain")
    target = read_target(tmp_path / "target")
    stored = store_target(precision, target, tmp_path / "out.safetensors")
    blocks = stored["layers.1.experts_gate_up_proj.blocks"]
    assert blocks.location is not None
    assert blocks.location.path.samefile(tmp_path / "target" / "model.safetensors")
    expected = load_file(tmp_path / "target" / "model.safetensors")["model.layers.1.mlp.experts.gate_up_proj_blocks"]
    np.testing.assert_array_equal(load_tensor(blocks), expected.numpy())
    assert "layers.1.experts_gate_up_proj" not in stored
    assert open_stored(tmp_path / "out.safetensors") == stored


def replace_target(folder: Path, precision: str) -> None:
    """Put a target in place that has what a recipe is for."""
    if precision == "nvfp4-experts":
        save_target(folder / "target", "Qwen3MoeForCausalLM")
    if precision == "mxfp4":
        save_target(folder / "target", "GptOssForCausalLM", hidden_size=64, intermediate_size=32)
        to_mxfp4(folder / "target", folder / "plain")


@pytest.mark.parametrize("precision", [name for name in BUILD_RECIPES if name != "nvfp4-awq"])
def test_a_plan_counts_the_bytes_that_are_written(pair: Path, precision: str) -> None:
    replace_target(pair, precision)
    storage = plan_storage(precision, read_target(pair / "target"), read_drafter(pair / "head"))
    (pair / precision).mkdir()
    store_target(precision, read_target(pair / "target"), pair / precision / "target.safetensors")
    store_drafter(
        precision, read_drafter(pair / "head"), read_target(pair / "target"), pair / precision / "drafter.safetensors"
    )
    names = ("target.safetensors", "drafter.safetensors")
    written = sum(path.stat().st_size for path in (pair / precision / name for name in names) if path.exists())
    assert 0 <= written - stored_bytes(storage.layout) < 1024 * max(1, len(storage.layout))


@pytest.mark.parametrize("precision", ["fp8", "nvfp4"])
def test_onnx_runtime_refuses_what_it_has_no_kernels_for(precision: str) -> None:
    with pytest.raises(UsageError, match=f"precision `{precision}` does not run in backend `onnxruntime`") as caught:
        require_recipe(precision, "onnxruntime")
    assert caught.value.hint == "`onnxruntime` takes fp32, native, bf16, fp16, mxfp4, int8, int4, fp32-int8-drafter"


def test_a_build_refuses_a_recipe_of_another_backend_before_it_reads(tmp_path: Path) -> None:
    spec = BuildSpec(
        name="tiny",
        target_path=tmp_path,
        drafter_path=tmp_path,
        tokenizer_path=tmp_path,
        output_path=tmp_path / "out",
        backend="onnxruntime",
    )
    with pytest.raises(UsageError, match="tensorrt-rtx and tensorrt backends only"):
        pipeline.build(dataclasses.replace(spec, precision="nvfp4"))


def test_tensorrt_is_given_bfloat16(pair: Path) -> None:
    target: Any = read_target(pair / "target")
    assert choose_recipe(target, "tensorrt-rtx")[0] == "bf16"
    assert choose_recipe(target)[0] == "fp32"


@pytest.mark.parametrize(("precision", "share"), [("fp8", 1 / 16), ("nvfp4", 1 / 4)])
def test_a_build_gives_its_packed_matrices_back(pair: Path, precision: str, share: float) -> None:
    # The largest gap between neighbours is a share of the number itself: 1/8 with 3 bits, 1/2 with 1; half of it is
    # the error, and small numbers are off by that much of their block's largest.
    store(pair, precision)
    target = read_target(pair / "target").config
    drafter = read_drafter(pair / "head").config
    stored = (open_stored(pair / precision / f"{role}.safetensors") for role in ("target", "drafter"))
    source = build_source(target, drafter, *stored)
    for name, part in (("q_proj", "self_attn.q_proj"), ("up_proj", "mlp.up_proj"), ("down_proj", "mlp.down_proj")):
        expected = fused(pair, part).numpy()
        found = source.load_target(f"layers.2.{name}")
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() < share * np.abs(expected).max()
