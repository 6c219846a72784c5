"""Targets whose layers are quantized in different formats: MIXED_PRECISION, by the rules of both loaders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file as save_scales
from safetensors.torch import load_file, save_file

from peagle_trt.quant.activation_scales import read_activation_scales
from peagle_trt.quant.layer_recipes import LayerRecipe, load_layer_recipe
from peagle_trt.readers import read_target
from peagle_trt.writers.loaders import judge_folder
from peagle_trt.writers.loaders.mixed import taken_by_trtllm, taken_by_vllm
from peagle_trt.writers.quantized import plan_target, quantize_target
from tests.support.checkpoints import copy_folder
from tests.support.quantized_export import edit_document

RECIPE = """
summary = "attention in FP8, feed-forward layers and experts in NVFP4, the last of them as weights alone"
[target]
qkv = { weights = "fp8", activations = "fp8" }
o = { weights = "fp8", activations = "fp8" }
gate_up = { weights = "nvfp4", activations = "nvfp4" }
experts = { weights = "nvfp4", activations = "nvfp4" }
down = { weights = "nvfp4" }
"""
ATTENTION, MLP = "model.layers.1.self_attn", "model.layers.1.mlp"


@pytest.fixture(scope="session")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> LayerRecipe:
    path = tmp_path_factory.mktemp("recipe") / "mixed.toml"
    path.write_text(RECIPE)
    return load_layer_recipe(str(path))


@pytest.fixture(scope="session")
def mixed(sources: Path, recipe: LayerRecipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixed")
    quantize_target(read_target(sources / "llama"), recipe, folder / "llama")
    quantize_target(read_target(sources / "qwen" / "target"), recipe, folder / "qwen")
    return folder


def descriptions(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    own = json.loads((folder / "hf_quant_config.json").read_text())["quantization"]
    return own, json.loads((folder / "config.json").read_text())["quantization_config"]


def edit_layers(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    edit_document(folder / "hf_quant_config.json", lambda found: change(found["quantization"]["quantized_layers"]))
    edit_document(folder / "config.json", lambda found: change(found["quantization_config"]["quantized_layers"]))


def refused(folder: Path) -> dict[str, str]:
    return {finding.what: finding.found for finding in judge_folder(folder) if finding.level == "refused"}


def test_both_descriptions_name_every_layer(mixed: Path) -> None:
    own, twin = descriptions(mixed / "llama")
    assert own["quant_algo"] == twin["quant_algo"] == "MIXED_PRECISION"
    assert own["quantized_layers"] == twin["quantized_layers"]
    layers = own["quantized_layers"]
    assert len(layers) == 14
    assert layers[f"{ATTENTION}.q_proj"] == {"quant_algo": "FP8"}
    assert layers[f"{MLP}.up_proj"] == {"quant_algo": "NVFP4", "group_size": 16}
    assert layers[f"{MLP}.down_proj"] == {"quant_algo": "W4A16_NVFP4", "group_size": 16}
    assert twin["quant_method"] == "modelopt"
    targets = [target for group in twin["config_groups"].values() for target in group["targets"]]
    assert sorted(targets) == sorted(layers)


def test_every_tensor_is_of_its_layer_s_format(mixed: Path) -> None:
    tensors = load_file(mixed / "llama" / "model.safetensors")
    assert tensors[f"{ATTENTION}.o_proj.weight"].dtype == torch.float8_e4m3fn
    assert tensors[f"{MLP}.gate_proj.weight"].dtype == tensors[f"{MLP}.down_proj.weight"].dtype == torch.uint8
    assert f"{MLP}.gate_proj.input_scale" in tensors
    assert f"{MLP}.down_proj.input_scale" not in tensors


@pytest.mark.parametrize("name", ["llama", "qwen"])
def test_what_is_written_passes_every_rule(mixed: Path, name: str) -> None:
    findings = judge_folder(mixed / name)
    assert {finding.level for finding in findings} == {"ok"}
    assert {"vLLM: algorithms of layers", "TensorRT-LLM: algorithms of layers"} <= {each.what for each in findings}


def test_layers_that_are_kept_pass_too(sources: Path, recipe: LayerRecipe, tmp_path: Path) -> None:
    # NVFP4 leaves errors of a tenth here, FP8 of a fortieth.
    found = quantize_target(read_target(sources / "llama"), recipe, tmp_path / "out", keep_above=0.05)
    assert found.algorithm == "FP8"
    assert refused(tmp_path / "out") == {}


def test_modelopt_s_own_form_without_a_list_of_what_is_left_out_passes(mixed: Path, tmp_path: Path) -> None:
    folder = copy_folder(mixed / "llama", tmp_path / "bare")
    edit_document(folder / "hf_quant_config.json", lambda found: found["quantization"].pop("exclude_modules"))
    edit_document(folder / "config.json", lambda found: found["quantization_config"].pop("ignore"))
    assert refused(folder) == {}


def put(name: str, algorithm: str) -> Callable[[dict[str, Any]], None]:
    return lambda layers: layers.update({name: {"quant_algo": algorithm}})


BROKEN: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "missing": (lambda layers: layers.pop(f"{ATTENTION}.o_proj"), "tensors of quantized layers"),
    "other": (
        put(f"{MLP}.down_proj", "NVFP4"),
        "vLLM: algorithms of layers",
    ),
    "unknown": (
        put(f"{MLP}.down_proj", "INT3"),
        "vLLM: algorithms of layers",
    ),
    "no algorithm": (lambda layers: layers.update({f"{MLP}.down_proj": 4}), "tensors of quantized layers"),
    "split": (
        put(f"{ATTENTION}.k_proj", "NVFP4"),
        "vLLM: algorithms of layers",
    ),
    "first": (
        put(f"{ATTENTION}.q_proj", "NVFP4"),
        "TensorRT-LLM: algorithms of layers",
    ),
    "none": (lambda layers: layers.clear(), "vLLM: algorithms of layers"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_descriptions_that_do_not_fit_are_found(mixed: Path, tmp_path: Path, case: str) -> None:
    folder = copy_folder(mixed / "llama", tmp_path / "broken")
    change, what = BROKEN[case]
    edit_layers(folder, change)
    assert what in refused(folder)


def test_descriptions_that_differ_are_found(mixed: Path, tmp_path: Path) -> None:
    folder = copy_folder(mixed / "llama", tmp_path / "broken")
    edit_document(
        folder / "config.json",
        lambda found: found["quantization_config"]["quantized_layers"].pop(f"{MLP}.down_proj"),
    )
    told = refused(folder)["agreement of hf_quant_config.json and config.json"]
    assert told == f"quantized_layers: `{MLP}.down_proj`"


def test_a_layer_that_lost_its_input_scale_is_found(mixed: Path, tmp_path: Path) -> None:
    folder = copy_folder(mixed / "llama", tmp_path / "broken")
    tensors = load_file(folder / "model.safetensors")
    del tensors[f"{MLP}.up_proj.input_scale"]
    save_file(tensors, folder / "model.safetensors")
    assert refused(folder)["tensors of quantized layers"] == f"`{MLP}.up_proj` lacks `input_scale`"


def test_scales_of_one_format_serve_the_other(sources: Path, recipe: LayerRecipe, tmp_path: Path) -> None:
    target = read_target(sources / "llama")
    modules = [each.module for each in plan_target(target, recipe).rounded]
    scales = {f"{module}.input_scale": np.array(0.5, np.float32) for module in modules}
    path = tmp_path / "scales.safetensors"
    save_scales(scales, path, metadata={"recipe": "fp8", "samples": "1", "tokens": "1"})
    quantize_target(target, recipe, tmp_path / "out", scales=read_activation_scales(path))
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    # 0.5 * 448 is the largest number that was seen; NVFP4 reaches 2688.
    assert tensors[f"{ATTENTION}.q_proj.input_scale"].item() == 0.5
    assert tensors[f"{MLP}.up_proj.input_scale"].item() == pytest.approx(0.5 * 448 / 2688, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "by_vllm", "by_trtllm"),
    [
        ("a.qkv_proj", {"FP8"}, {"FP8"}),
        ("a.gate_up_proj", {"NVFP4", "FP8"}, {"NVFP4"}),
        ("a.o_proj", {"NVFP4"}, {"NVFP4"}),
        ("b.experts", {"NVFP4"}, {"NVFP4"}),
        ("a.down_proj", set(), set()),
    ],
)
def test_each_loader_finds_a_layer_in_its_own_way(name: str, by_vllm: set[str], by_trtllm: set[str]) -> None:
    layers = {
        "a.q_proj": "FP8",
        "a.k_proj": "FP8",
        "a.v_proj": "FP8",
        "a.gate_proj": "NVFP4",
        "a.up_proj": "FP8",
        "a.o_proj": "NVFP4",
        "b.experts.0.down_proj": "NVFP4",
    }
    assert (taken_by_vllm(name, layers), taken_by_trtllm(name, layers)) == (by_vllm, by_trtllm)
