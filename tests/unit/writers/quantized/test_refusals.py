"""What cannot be quantized is refused with the layer's name, before anything is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from safetensors.torch import load_file
from safetensors.torch import save_file as save_torch

from peagle_trt.errors import CheckpointError, UsageError
from peagle_trt.quant.activation_scales import read_activation_scales
from peagle_trt.quant.layer_recipes import LayerRecipe, load_layer_recipe
from peagle_trt.readers import read_head, read_target
from peagle_trt.writers.quantized import plan_head, plan_target, quantize_head, quantize_target
from tests.support.checkpoints import copy_folder, edit_tensors
from tests.support.models import save_target
from tests.support.quantized import FORMS, quantize_folder

Q_PROJ = "model.layers.1.self_attn.q_proj"


def own_recipe(folder: Path, text: str) -> LayerRecipe:
    (folder / "own.toml").write_text(f'summary = "own"\n{text}\n')
    return load_layer_recipe(str(folder / "own.toml"))


def refused(source: Path, output: Path, recipe: LayerRecipe, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        quantize_target(read_target(source), recipe, output / "out")
    assert not list(output.glob("*out*"))


@pytest.mark.parametrize("recipe", ["nvfp4-experts", "mxfp4"])
def test_a_recipe_that_matches_no_layer(sources: Path, tmp_path: Path, recipe: str) -> None:
    refused(sources / "llama", tmp_path, load_layer_recipe(recipe), f"recipe `{recipe}` matches no layer of")


def test_a_head_that_a_recipe_does_not_match(sources: Path) -> None:
    with pytest.raises(CheckpointError, match="recipe `mxfp4` matches no layer of"):
        plan_head(read_head(sources / "head"), None, load_layer_recipe("mxfp4"), "vllm")


def test_rows_that_cannot_be_cut_into_blocks(tmp_path: Path) -> None:
    save_target(tmp_path / "odd", num_hidden_layers=1, intermediate_size=72)
    message = "rows of `model.layers.0.mlp.down_proj` have 72 values, no multiple of 16"
    refused(tmp_path / "odd", tmp_path, load_layer_recipe("nvfp4"), message)
    keep = '[target]\ngate_up = { weights = "nvfp4" }\ndown = { weights = "nvfp4" }\nkeep = ["*.down_proj"]'
    quantize_target(read_target(tmp_path / "odd"), own_recipe(tmp_path, keep), tmp_path / "out")


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["model__layers__1__mlp__up_proj__weight", "model__norm__weight"])
def test_values_that_are_no_numbers(tmp_path: Path, name: str, value: float) -> None:
    save_target(tmp_path / "bad", num_hidden_layers=2)
    stored = name.replace("__", ".")
    values = load_file(tmp_path / "bad" / "model.safetensors")[stored].numpy().copy()
    values.reshape(-1)[-1] = value
    edit_tensors(tmp_path / "bad", **{name: values})
    refused(tmp_path / "bad", tmp_path, load_layer_recipe("fp8"), f"tensor `{stored}` holds values that are nan or inf")


@pytest.mark.parametrize(
    ("recipe", "keep_above"), [("fp8", None), ("nvfp4", None), ("w4a16-nvfp4", None), ("bf16", None), ("fp8", 0.5)]
)
def test_numbers_too_large_to_be_rounded_are_refused_before_a_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str, keep_above: float | None
) -> None:
    save_target(tmp_path / "large", num_hidden_layers=2)
    name = "model.layers.1.self_attn.k_proj.weight"
    values = load_file(tmp_path / "large" / "model.safetensors")[name].numpy().copy()
    # The nearest bfloat16 is infinite.
    values[0, 0] = np.finfo(np.float32).max
    edit_tensors(tmp_path / "large", **{name.replace(".", "__"): values})
    monkeypatch.setattr("peagle_trt.writers.quantized.export.write_shard", pytest.fail)
    with pytest.raises(CheckpointError, match=rf"`{name}` holds a magnitude of 3\.4e\+38, expected at most 1\.1e\+12"):
        quantize_target(
            read_target(tmp_path / "large"), load_layer_recipe(recipe), tmp_path / "out", keep_above=keep_above
        )
    assert not list(tmp_path.glob("*out*"))


@pytest.mark.parametrize("form", ["modelopt_fp8", "compressed_nvfp4"])
def test_a_target_that_is_quantized_already(sources: Path, tmp_path: Path, form: str) -> None:
    folder = copy_folder(sources / "llama", tmp_path / "quantized")
    quantize_folder(folder, tmp_path / "plain", FORMS[form])
    message = r"`model.layers.0.mlp.gate_proj.weight(_packed)?` is quantized already"
    refused(folder, tmp_path, load_layer_recipe("nvfp4"), message)


def test_a_head_that_is_quantized_already(sources: Path, tmp_path: Path) -> None:
    recipe = load_layer_recipe("fp8")
    quantize_head(read_head(sources / "head"), None, recipe, "vllm", tmp_path / "once")
    with pytest.raises(CheckpointError, match=r"`layers\.0\.self_attn\.q_proj\.weight` is quantized already"):
        plan_head(read_head(tmp_path / "once"), None, recipe, "vllm")


def test_a_gguf_file(sources: Path, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    target = replace(read_target(sources / "llama"), path=tmp_path / "model.gguf")
    with pytest.raises(CheckpointError, match=r"model\.gguf` is a GGUF file"):
        plan_target(target, load_layer_recipe("fp8"))


@pytest.mark.parametrize("recipe", ["fp8", "fp8-kv"])
def test_fp8_beside_kept_mxfp4_experts(sources: Path, tmp_path: Path, recipe: str) -> None:
    message = "keeps the experts in MXFP4 and quantizes `model.layers.0.self_attn.q_proj`, which no loader takes"
    refused(sources / "gpt-oss" / "target", tmp_path, load_layer_recipe(recipe), message)


def test_mxfp4_blocks_that_are_too_far_apart(sources: Path, tmp_path: Path) -> None:
    folder = copy_folder(sources / "gpt-oss" / "target", tmp_path / "far")
    path = next(folder.glob("*.safetensors"))
    tensors = load_file(path)
    name = "model.layers.1.mlp.experts.down_proj_scales"
    tensors[name][5, 3, 0] = 100
    save_torch(tensors, path)
    message = r"`model.layers.1.mlp.experts.down_proj_blocks` has 1 block\(s\) over 17 powers of two below its largest"
    refused(folder, tmp_path, load_layer_recipe("nvfp4"), message)


def test_a_part_of_what_loaders_fuse(sources: Path, tmp_path: Path) -> None:
    recipe = own_recipe(tmp_path, f'[target]\nqkv = {{ weights = "nvfp4" }}\nkeep = ["{Q_PROJ}"]')
    refused(sources / "llama", tmp_path, recipe, f"quantizes only one of `{Q_PROJ}` and .*, which loaders fuse")


def test_some_experts_of_a_layer(sources: Path, tmp_path: Path) -> None:
    recipe = own_recipe(tmp_path, '[target]\nexperts = { weights = "nvfp4" }\nkeep = ["*.1.mlp.experts.7.*"]')
    refused(
        sources / "qwen" / "target", tmp_path, recipe, "quantizes only one of `model.layers.1.mlp.experts.0.gate_proj`"
    )


def test_a_pattern_to_keep_that_matches_nothing(sources: Path, tmp_path: Path) -> None:
    recipe = own_recipe(tmp_path, '[target]\no = { weights = "nvfp4" }\nkeep = ["model.layers.7.*"]')
    refused(sources / "llama", tmp_path, recipe, r"has no layer `model.layers.7.\*`, which the recipe keeps")


def test_a_cache_alone(sources: Path, tmp_path: Path) -> None:
    recipe = own_recipe(tmp_path, '[target]\ncache = "fp8"\nnorms = { weights = "bf16" }')
    refused(sources / "llama", tmp_path, recipe, "nothing is quantized but the cache")


def scales_of(source: Path, recipe: str) -> dict[str, np.ndarray]:
    """A number of its own for everything that a recipe wants measured."""
    plan = plan_target(read_target(source), load_layer_recipe(recipe))
    names = [output.name for job in plan.jobs for output in job.outputs]
    wanted = [name for name in names if name.endswith(("input_scale", ".k_scale", ".v_scale"))]
    return {name: np.array(0.01 * number, np.float32) for number, name in enumerate(wanted, 1)}


def test_measured_scales_are_written_and_shared_by_fused_layers(sources: Path, tmp_path: Path) -> None:
    scales = scales_of(sources / "llama", "fp8-kv")
    save_file(scales, tmp_path / "scales.safetensors")
    measured = read_activation_scales(tmp_path / "scales.safetensors")
    quantize_target(read_target(sources / "llama"), load_layer_recipe("fp8-kv"), tmp_path / "out", scales=measured)
    found = load_file(tmp_path / "out" / "model.safetensors")
    attention = "model.layers.1.self_attn"
    largest = max(scales[f"{attention}.{part}_proj.input_scale"] for part in "qkv")
    assert {float(found[f"{attention}.{part}_proj.input_scale"]) for part in "qkv"} == {float(largest)}
    for name in (f"{attention}.o_proj.input_scale", f"{attention}.k_proj.k_scale", f"{attention}.v_proj.v_scale"):
        assert float(found[name]) == float(scales[name])


BAD_SCALES = {
    "missing": ({f"{Q_PROJ}.input_scale": None}, f"lacks `{Q_PROJ}.input_scale`"),
    "missing_cache": ({"model.layers.0.self_attn.v_proj.v_scale": None}, "lacks `model.layers.0.self_attn.v_proj.v_s"),
    "zero": (
        {f"{Q_PROJ}.input_scale": np.array(0, np.float32)},
        f"`{Q_PROJ}.input_scale` holds a number that is no positive",
    ),
    "denormal": ({f"{Q_PROJ}.input_scale": np.array(1e-45, np.float32)}, "holds a number that is no positive"),
    "nan": ({f"{Q_PROJ}.input_scale": np.array(np.nan, np.float32)}, "holds a number that is no positive"),
    "vector": ({f"{Q_PROJ}.input_scale": np.ones(64, np.float32)}, r"is F32 \[64\], expected F32 of 0 dim"),
    "awq": ({f"{Q_PROJ}.pre_quant_scale": np.ones(64, np.float32)}, "pre_quant_scale`, by which AWQ"),
    "other": ({"model.layers.9.mlp.up_proj.input_scale": np.array(1, np.float32)}, "belongs to no layer"),
}


@pytest.mark.parametrize("case", BAD_SCALES)
def test_scales_that_do_not_fit(sources: Path, tmp_path: Path, case: str) -> None:
    changes, message = BAD_SCALES[case]
    scales = scales_of(sources / "llama", "fp8-kv") | changes
    save_file({name: value for name, value in scales.items() if value is not None}, tmp_path / "s.safetensors")
    with pytest.raises(CheckpointError, match=message):
        plan_target(
            read_target(sources / "llama"),
            load_layer_recipe("fp8-kv"),
            read_activation_scales(tmp_path / "s.safetensors"),
        )


@pytest.mark.parametrize("recipe", ["nvfp4", "nvfp4-kv"])
def test_scales_that_were_measured_for_another_format(sources: Path, tmp_path: Path, recipe: str) -> None:
    path = tmp_path / "s.safetensors"
    save_file(scales_of(sources / "llama", "fp8"), path, metadata={"recipe": recipe})
    with pytest.raises(CheckpointError, match=f"was measured by recipe `{recipe}`, whose scales are not those of FP8"):
        plan_target(read_target(sources / "llama"), load_layer_recipe("fp8"), read_activation_scales(path))
    plan_target(read_target(sources / "llama"), load_layer_recipe("nvfp4"), read_activation_scales(path))


def test_zeros_are_written_with_the_scale_1(tmp_path: Path) -> None:
    save_target(tmp_path / "zeros", num_hidden_layers=1)
    edit_tensors(tmp_path / "zeros", model__layers__0__mlp__down_proj__weight=np.zeros((64, 96), np.float32))
    quantize_target(read_target(tmp_path / "zeros"), load_layer_recipe("nvfp4"), tmp_path / "out")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert float(found["model.layers.0.mlp.down_proj.weight_scale_2"]) == 1
    assert set(found["model.layers.0.mlp.down_proj.weight_scale"].float().flatten().tolist()) == {1.0}
    assert not read_target(tmp_path / "out").weights.load("layers.0.down_proj").any()


@pytest.mark.parametrize("recipe", ["bf16", "w4a16-nvfp4"])
def test_scales_of_what_a_recipe_leaves_alone(sources: Path, tmp_path: Path, recipe: str) -> None:
    path = tmp_path / "s.safetensors"
    save_file(scales_of(sources / "llama", "nvfp4"), path, metadata={"recipe": "nvfp4"})
    with pytest.raises(UsageError, match=f"which recipe `{recipe}` leaves alone"):
        plan_target(read_target(sources / "llama"), load_layer_recipe(recipe), read_activation_scales(path))


def test_counts_of_thousands_of_digits(sources: Path, tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    save_file(scales_of(sources / "llama", "fp8"), path, metadata={"samples": "9" * 5000})
    with pytest.raises(CheckpointError, match="expected numbers"):
        read_activation_scales(path)


TWO_FORMATS = (
    '[target]\no = { weights = "fp8", activations = "fp8" }\ndown = { weights = "nvfp4", activations = "nvfp4" }'
)


@pytest.mark.parametrize(
    ("metadata", "value", "message"),
    [
        ({}, 1.0, "does not say which number format its scales were measured for"),
        ({"recipe": "nvfp4"}, 3.4e38, r"o_proj.input_scale` is 3.4e\+38, which float32 cannot hold as a scale of"),
        ({"recipe": "fp8"}, 2e-38, "down_proj.input_scale` is 2e-38, which float32 cannot hold as a scale of nvfp4"),
    ],
)
def test_scales_that_cannot_be_brought_to_each_layer_s_format(
    sources: Path, tmp_path: Path, metadata: dict[str, str], value: float, message: str
) -> None:
    path = tmp_path / "s.safetensors"
    scales = scales_of(sources / "llama", "nvfp4")
    for name in scales:
        if name.endswith((".o_proj.input_scale", ".down_proj.input_scale")):
            scales[name] = np.array(value, np.float32)
    save_file(scales, path, metadata=metadata)
    with pytest.raises(CheckpointError, match=message):
        plan_target(read_target(sources / "llama"), own_recipe(tmp_path, TWO_FORMATS), read_activation_scales(path))
