"""Checkpoints whose weights are worth their codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from peagle_trt.errors import CheckpointError, UsageError
from peagle_trt.quant.calibration.dequantized import WeightPlan, modules_above, write_dequantized
from peagle_trt.quant.nvfp4 import dequantize_nvfp4, global_scale, quantize_nvfp4
from peagle_trt.readers import read_drafter, read_target
from tests.support.models import save_drafter, save_target

LAYER = "model.layers.0"
QKV = [f"{LAYER}.self_attn.{part}_proj" for part in "qkv"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    save_target(folder, num_hidden_layers=1)
    return folder


def tensors(folder: Path) -> dict[str, Any]:
    return load_file(folder / "model.safetensors")


def write(plain: Path, output: Path, plan: WeightPlan) -> dict[str, float]:
    return write_dequantized(plain, read_target(plain).weights, output, plan)


def test_fp8_weights_are_worth_what_torch_says(plain: Path, tmp_path: Path) -> None:
    errors = write(plain, tmp_path / "out", WeightPlan(scheme="fp8"))
    before, after = tensors(plain), tensors(tmp_path / "out")
    assert len(errors) == 7
    for module, error in errors.items():
        weight = before[f"{module}.weight"]
        scale = weight.abs().max() / 448
        worth = (weight / scale).to(torch.float8_e4m3fn).float() * scale
        assert torch.equal(after[f"{module}.weight"], worth)
        assert error == pytest.approx(float((worth - weight).norm() / weight.norm()), rel=1e-5)


def test_fused_linears_share_their_global_scale(plain: Path, tmp_path: Path) -> None:
    write(plain, tmp_path / "out", WeightPlan(scheme="nvfp4"))
    before, after = tensors(plain), tensors(tmp_path / "out")
    shared = global_scale(*(before[f"{module}.weight"].numpy() for module in QKV))
    for module in QKV:
        worth = dequantize_nvfp4(quantize_nvfp4(before[f"{module}.weight"].numpy(), shared))
        np.testing.assert_array_equal(after[f"{module}.weight"].numpy(), worth)


def test_what_is_not_quantized_stays(plain: Path, tmp_path: Path) -> None:
    plan = WeightPlan(scheme="nvfp4", parts=("down_proj", "up_proj"), kept=(f"{LAYER}.mlp.up_proj",))
    errors = write(plain, tmp_path / "out", plan)
    before, after = tensors(plain), tensors(tmp_path / "out")
    assert set(errors) == {f"{LAYER}.mlp.down_proj"}
    differing = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    assert differing == {f"{LAYER}.mlp.down_proj.weight"}


def test_columns_are_divided_before_and_multiplied_after(plain: Path, tmp_path: Path) -> None:
    name = f"{LAYER}.self_attn.o_proj"
    columns = np.geomspace(0.1, 10, 64, dtype=np.float32)
    plan = WeightPlan(scheme="nvfp4", parts=("o_proj",), column_scales={f"{name}.pre_quant_scale": columns})
    write(plain, tmp_path / "out", plan)
    divided = tensors(plain)[f"{name}.weight"].numpy() / columns
    worth = dequantize_nvfp4(quantize_nvfp4(divided)) * columns
    np.testing.assert_array_equal(tensors(tmp_path / "out")[f"{name}.weight"].numpy(), worth)


def test_a_drafter_keeps_its_map_and_its_mask(tmp_path: Path) -> None:
    save_drafter(tmp_path / "head", draft_vocab_size=120)
    head = read_drafter(tmp_path / "head")
    errors = write_dequantized(tmp_path / "head", head.weights, tmp_path / "out", WeightPlan(scheme="nvfp4"))
    again = read_drafter(tmp_path / "out")
    assert "fc" in errors
    assert again.config == head.config
    for name in ("d2t", "mask_hidden", "norm"):
        np.testing.assert_array_equal(again.weights.load(name), head.weights.load(name))


def test_experts_that_lie_one_by_one_are_quantized_one_by_one(tmp_path: Path) -> None:
    save_target(tmp_path / "plain", "Qwen3MoeForCausalLM", num_hidden_layers=1)
    errors = write(tmp_path / "plain", tmp_path / "out", WeightPlan(scheme="nvfp4"))
    assert {f"{LAYER}.mlp.experts.15.{part}_proj" for part in ("gate", "up", "down")} < set(errors)
    assert f"{LAYER}.mlp.gate" not in errors
    assert read_target(tmp_path / "out").config == read_target(tmp_path / "plain").config


def test_experts_in_one_piece_are_refused(tmp_path: Path) -> None:
    save_target(tmp_path / "plain", "GptOssForCausalLM", num_hidden_layers=1)
    with pytest.raises(CheckpointError, match=r"experts_\w+` is put together"):
        write(tmp_path / "plain", tmp_path / "out", WeightPlan(scheme="nvfp4"))


def test_a_plan_that_takes_nothing_is_refused(plain: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing in"):
        write(plain, tmp_path / "out", WeightPlan(scheme="fp8", parts=("lm_hed",)))


def test_rows_that_blocks_do_not_divide_are_named(tmp_path: Path) -> None:
    save_target(tmp_path / "plain", num_hidden_layers=1, intermediate_size=72)
    with pytest.raises(CheckpointError, match=r"down_proj\.weight`: 72 columns"):
        write(tmp_path / "plain", tmp_path / "out", WeightPlan(scheme="nvfp4", parts=("down_proj",)))


def test_linears_that_are_multiplied_together_are_left_out_together() -> None:
    errors = {QKV[0]: 0.02, QKV[1]: 0.2, QKV[2]: 0.01, f"{LAYER}.self_attn.o_proj": 0.05}
    assert modules_above(errors, 0.1) == sorted(QKV)
    assert modules_above(errors, 0.3) == []
