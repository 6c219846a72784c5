"""What is written is read back as the numbers that the formats' own arithmetic gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from peagle_trt.quant.fp8 import quantize_fp8
from peagle_trt.quant.layer_recipes import load_layer_recipe
from peagle_trt.quant.nvfp4 import dequantize_nvfp4, global_scale, quantize_nvfp4
from peagle_trt.readers import read_head, read_target
from peagle_trt.writers.loaders import judge_folder
from peagle_trt.writers.quantized import quantize_head, quantize_target

Array = np.ndarray


def worth_nvfp4(matrix: Array, *group: Array) -> Array:
    return dequantize_nvfp4(quantize_nvfp4(matrix, global_scale(*(group or (matrix,)))))


def worth_fp8(matrix: Array, *group: Array) -> Array:
    scale = quantize_fp8(np.concatenate([each.reshape(-1) for each in group or (matrix,)])).scale
    codes = torch.tensor(matrix / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    return codes.float().numpy() * scale


WORTH = {"fp8": worth_fp8, "nvfp4": worth_nvfp4, "w4a16-nvfp4": worth_nvfp4}
QKV, GATE_UP = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")


@pytest.mark.parametrize("recipe", WORTH)
def test_a_dense_target_is_worth_what_its_codes_say(sources: Path, tmp_path: Path, recipe: str) -> None:
    target = read_target(sources / "llama")
    quantize_target(target, load_layer_recipe(recipe), tmp_path / "out")
    found = read_target(tmp_path / "out")
    for group in (QKV, GATE_UP, ("o_proj",), ("down_proj",)):
        names = [f"layers.1.{name}" for name in group]
        matrices = [target.weights.load(name) for name in names]
        for name, matrix in zip(names, matrices, strict=True):
            np.testing.assert_array_equal(found.weights.load(name), WORTH[recipe](matrix, *matrices), err_msg=name)
    for name in ("embed_tokens", "layers.1.input_norm"):
        np.testing.assert_array_equal(found.weights.load(name), target.weights.load(name))
    assert found.config == target.config


@pytest.mark.parametrize("recipe", ["fp8", "nvfp4"])
def test_experts_apart_share_a_scale_within_an_expert(sources: Path, tmp_path: Path, recipe: str) -> None:
    target = read_target(sources / "qwen" / "target")
    quantize_target(target, load_layer_recipe(recipe), tmp_path / "out")
    found = read_target(tmp_path / "out")
    gate_up, down = (target.weights.load(f"layers.1.experts_{name}_proj") for name in ("gate_up", "down"))
    expected = np.stack([WORTH[recipe](expert) for expert in gate_up])
    np.testing.assert_array_equal(found.weights.load("layers.1.experts_gate_up_proj"), expected)
    np.testing.assert_array_equal(
        found.weights.load("layers.1.experts_down_proj"), np.stack([WORTH[recipe](expert) for expert in down])
    )
    np.testing.assert_array_equal(found.weights.load("layers.1.router"), target.weights.load("layers.1.router"))


def test_mxfp4_experts_become_nvfp4_without_a_change(sources: Path, tmp_path: Path) -> None:
    target = read_target(sources / "gpt-oss" / "target")
    written = quantize_target(target, load_layer_recipe("nvfp4-experts"), tmp_path / "out")
    found = read_target(tmp_path / "out")
    for name in target.weights:
        np.testing.assert_array_equal(found.weights.load(name), target.weights.load(name), err_msg=name)
    assert any("without a change of any number" in note for note in written.notes)
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    stem = "model.layers.0.mlp.experts.gate_up_proj"
    shapes = {name: tuple(tensors[stem + name].shape) for name in ("", "_weight_scale", "_weight_scale_2", "_bias")}
    # [experts, hidden / 2, 2 * intermediate], as ModelOpt 0.47 exports it.
    assert shapes == {"": (32, 32, 64), "_weight_scale": (32, 4, 64), "_weight_scale_2": (), "_bias": (32, 64)}


def test_plain_stacks_of_experts_are_packed_along_their_input(sources: Path, tmp_path: Path) -> None:
    quantize_target(read_target(sources / "gpt-oss" / "target"), load_layer_recipe("bf16"), tmp_path / "plain")
    target = read_target(tmp_path / "plain")
    for recipe in ("nvfp4", "fp8"):
        quantize_target(target, load_layer_recipe(recipe), tmp_path / recipe)
        found = read_target(tmp_path / recipe)
        stack = target.weights.load("layers.0.experts_gate_up_proj")
        np.testing.assert_array_equal(found.weights.load("layers.0.experts_gate_up_proj"), WORTH[recipe](stack))


def test_bf16_unpacks_mxfp4_exactly(sources: Path, tmp_path: Path) -> None:
    target = read_target(sources / "gpt-oss" / "target")
    quantize_target(target, load_layer_recipe("bf16"), tmp_path / "out")
    found = read_target(tmp_path / "out")
    for name in target.weights:
        np.testing.assert_array_equal(found.weights.load(name), target.weights.load(name), err_msg=name)
    assert {spec.dtype for spec in load_file(tmp_path / "out" / "model.safetensors").values()} == {torch.bfloat16}


def test_mxfp4_is_kept_byte_for_byte(sources: Path, tmp_path: Path) -> None:
    quantize_target(read_target(sources / "gpt-oss" / "target"), load_layer_recipe("mxfp4"), tmp_path / "out")
    shards = sorted((sources / "gpt-oss" / "target").glob("*.safetensors"))
    before = {name: value for shard in shards for name, value in load_file(shard).items()}
    after = load_file(tmp_path / "out" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("dialect", ["vllm", "trtllm"])
@pytest.mark.parametrize("recipe", ["fp8-kv", "nvfp4"])
def test_a_head_is_worth_what_its_codes_say(sources: Path, tmp_path: Path, recipe: str, dialect: str) -> None:
    drafter = read_head(sources / "head")
    quantize_head(drafter, None, load_layer_recipe(recipe), dialect, tmp_path / "out")  # type: ignore[arg-type]
    found = read_head(tmp_path / "out")
    worth = WORTH[recipe.removesuffix("-kv")]
    matrices = [drafter.weights.load(f"layers.0.{name}") for name in QKV]
    for name, matrix in zip(QKV, matrices, strict=True):
        np.testing.assert_array_equal(found.weights.load(f"layers.0.{name}"), worth(matrix, *matrices))
    for name in ("fc", "mask_hidden", "norm"):
        np.testing.assert_array_equal(found.weights.load(name), drafter.weights.load(name), err_msg=name)
    assert [finding for finding in judge_folder(tmp_path / "out") if finding.level != "ok"] == []


def test_transformers_reads_what_is_kept(sources: Path, tmp_path: Path) -> None:
    from transformers import AutoConfig

    quantize_target(read_target(sources / "llama"), load_layer_recipe("nvfp4"), tmp_path / "out")
    config = AutoConfig.from_pretrained(tmp_path / "out")
    assert config.quantization_config["quant_algo"] == "NVFP4"
    assert config.hidden_size == read_target(sources / "llama").config.hidden_size
