"""Recipes of checkpoints in builds: what each stores, and what each refuses before anything is written."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from peagle_trt.build_folder import read_manifest
from peagle_trt.cli.main import run
from peagle_trt.engine.tensorrt.support import _OLDEST_OF_PRECISION
from peagle_trt.errors import CheckpointError, UsageError, VerificationError
from peagle_trt.quant import (
    BUILD_RECIPES,
    describe_kept_experts,
    find_recipe,
    open_stored,
    plan_storage,
    store_drafter,
    store_target,
)
from peagle_trt.quant.registry import UNBUILDABLE
from peagle_trt.readers import read_drafter, read_target
from peagle_trt.readers.safetensors_file import load_tensor
from peagle_trt.verify import build_source, rounded_source
from peagle_trt.verify.tolerances import TOLERANCES
from tests.support.batched import open_batched_pair
from tests.support.checkpoints import edit_tensors, narrow_tensors, save_byte_tokenizer
from tests.support.models import HEAD_DIM, HEADS, HIDDEN, VOCABULARY, save_drafter, save_target
from tests.support.quantized import FORMS, nvfp4, quantize_folder, to_mxfp4, unpack_nvfp4

PROJECTIONS = {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}
FEED_FORWARD = {"gate_up_proj", "down_proj"}
DOWN = "model__layers__1__mlp__down_proj__weight"


def store(folder: Path, precision: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Tensors of target and drafter as a build stores them."""
    target, drafter = read_target(folder / "target"), read_drafter(folder / "head")
    store_target(precision, target, folder / "t.safetensors")
    store_drafter(precision, drafter, target, folder / "d.safetensors")
    return load_file(folder / "t.safetensors"), load_file(folder / "d.safetensors")


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    save_target(tmp_path / "target")
    save_drafter(tmp_path / "head")
    return tmp_path


@pytest.fixture
def qwen_moe(tmp_path: Path) -> Path:
    save_target(tmp_path / "target", "Qwen3MoeForCausalLM")
    save_drafter(tmp_path / "head")
    return tmp_path


@pytest.fixture
def gpt_oss(tmp_path: Path) -> Path:
    save_target(tmp_path / "target", "GptOssForCausalLM", hidden_size=64, intermediate_size=32)
    to_mxfp4(tmp_path / "target", tmp_path / "plain")
    save_drafter(tmp_path / "head")
    return tmp_path


def packed(tensors: dict[str, torch.Tensor]) -> set[str]:
    """Last part of the names of what is stored as codes."""
    return {name.removesuffix(".block_scales").split(".")[2] for name in tensors if name.endswith(".block_scales")}


@pytest.mark.parametrize(("precision", "wanted"), [("nvfp4-mlp", FEED_FORWARD), ("w4a16-nvfp4", PROJECTIONS)])
def test_a_recipe_packs_its_kinds_of_layers_in_both_models(dense: Path, precision: str, wanted: set[str]) -> None:
    target, drafter = store(dense, precision)
    assert packed(target) == packed(drafter) == wanted
    assert target["lm_head"].dtype == target["layers.2.input_norm"].dtype == drafter["fc"].dtype == torch.bfloat16


def test_weights_alone_have_no_scale_of_their_rows(dense: Path) -> None:
    found = [name for each in store(dense, "w4a16-nvfp4") for name in each if "input_scale" in name]
    assert found == []


def test_experts_alone_are_packed_and_nothing_else(qwen_moe: Path) -> None:
    target, drafter = store(qwen_moe, "nvfp4-experts")
    assert packed(target) == {"experts_gate_up_proj", "experts_down_proj"}
    assert packed(drafter) == set()
    assert target["layers.2.qkv_proj"].dtype == drafter["layers.0.down_proj"].dtype == torch.bfloat16


@pytest.mark.parametrize("precision", ["mxfp4", "nvfp4-experts", "nvfp4-mlp", "w4a16-nvfp4"])
def test_experts_in_mxfp4_keep_their_words(gpt_oss: Path, precision: str) -> None:
    target, drafter = read_target(gpt_oss / "target"), read_drafter(gpt_oss / "head")
    storage = plan_storage(precision, target, drafter)
    kept = {name.rpartition(".")[0] for reference in storage.references for name in reference}
    assert {f"layers.1.experts_{part}_proj" for part in ("gate_up", "down")} <= kept
    assert not [tensor.name for tensor in storage.layout if tensor.name in kept]


@pytest.mark.parametrize(("precision", "is_cast"), [("mxfp4", False), ("bf16", False), ("nvfp4", True)])
def test_a_build_says_how_many_experts_keep_their_words(gpt_oss: Path, precision: str, is_cast: bool) -> None:
    text = describe_kept_experts(precision, read_target(gpt_oss / "target"))
    # Six layers of eight experts, with gate and up of 32 rows each and a way back.
    assert text.startswith(
        f"12 stacks of experts, {6 * 8 * 3 * 32 * 64:,} weights, stay in the checkpoint's MXFP4 words"
    )
    assert text.endswith("the same numbers at best, in 6 % more bytes") == is_cast


def test_a_build_of_gpt_oss_says_it_and_its_manifest_too(gpt_oss: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_byte_tokenizer(gpt_oss / "target")
    for name in ("target", "head"):
        narrow_tensors(gpt_oss / name)
    pair = ["--target", str(gpt_oss / "target"), "--drafter", str(gpt_oss / "head"), "--max-sequence-length", "64"]
    # In ONNX Runtime, so that nothing is compiled for it.
    build = ["build", *pair, "--backend", "onnxruntime", "--precision", "mxfp4", "-o", str(gpt_oss / "build")]
    assert run(build) == 0
    said = "12 stacks of experts, 294,912 weights, stay in the checkpoint's MXFP4 words"
    assert f"note: {said}" in capsys.readouterr().err
    assert read_manifest(gpt_oss / "build").sources["experts"] == said


@pytest.mark.parametrize(("precision", "architecture"), [("w4a16-nvfp4", "llama"), ("nvfp4-experts", "qwen_moe")])
def test_weights_alone_are_judged_as_float32_against_the_build_s_own(
    tmp_path: Path, precision: str, architecture: str
) -> None:
    save_target(tmp_path / "target", {"llama": "LlamaForCausalLM", "qwen_moe": "Qwen3MoeForCausalLM"}[architecture])
    save_drafter(tmp_path / "head")
    pair = open_batched_pair(
        tmp_path / "target", tmp_path / "head", tmp_path / "build", precision=precision, max_batch_size=2
    )
    stored = [open_stored(pair.engine_path / f"{role}.safetensors") for role in ("target", "drafter")]
    source = rounded_source(read_target(tmp_path / "target"), pair.drafter, *stored)
    for part in ("q_proj", "experts_down_proj" if architecture == "qwen_moe" else "down_proj"):
        name = f"layers.2.{part}"
        error = np.abs(source.load_target(name) - read_target(tmp_path / "target").weights.load(name)).max()
        assert error > 0
    changed = np.random.default_rng(0).normal(0, 0.1, (HEADS * HEAD_DIM, HIDDEN)).astype(np.float32)
    edit_tensors(tmp_path / "target", model__layers__2__self_attn__q_proj__weight=changed)
    other = rounded_source(read_target(tmp_path / "target"), pair.drafter, *stored)
    with pytest.raises(
        VerificationError, match=r"`layers.2.q_proj` was rounded to (NVFP4|BF16) with a relative error of 1"
    ):
        other.load_target("layers.2.q_proj")


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("draft_vocab_size", [120, VOCABULARY])
@pytest.mark.parametrize("precision", ["w4a16-nvfp4", "int4"])
def test_while_it_is_made_a_build_is_judged_by_all_of_its_own_weights(
    tmp_path: Path, precision: str, draft_vocab_size: int, is_tied: bool
) -> None:
    # In float32, so that a table which is left at the checkpoint's would differ from the build's bfloat16.
    save_target(tmp_path / "target", tie_word_embeddings=is_tied)
    save_drafter(tmp_path / "head", draft_vocab_size=draft_vocab_size)
    target, drafter = read_target(tmp_path / "target"), read_drafter(tmp_path / "head")
    stored = (
        store_target(precision, target, tmp_path / "t.safetensors"),
        store_drafter(precision, drafter, target, tmp_path / "d.safetensors"),
    )
    checked, own = rounded_source(target, drafter, *stored), build_source(target.config, drafter.config, *stored)
    for name in target.weights:
        np.testing.assert_array_equal(checked.load_target(name), own.load_target(name), err_msg=name)
    for name in {*drafter.weights, "embed_tokens", "lm_head", "fused_mask_hidden"} - {"mask_hidden", "d2t"}:
        np.testing.assert_array_equal(checked.load_drafter(name), own.load_drafter(name), err_msg=name)


def test_nothing_is_said_where_nothing_is_kept(dense: Path, gpt_oss: Path) -> None:
    assert describe_kept_experts("fp32", read_target(gpt_oss / "target")) == ""
    save_target(dense / "target")
    assert describe_kept_experts("nvfp4", read_target(dense / "target")) == ""


def test_experts_too_far_apart_for_nvfp4_are_kept_all_the_same(gpt_oss: Path) -> None:
    name = "model.layers.1.mlp.experts.down_proj_scales"
    scales = load_file(gpt_oss / "target" / "model.safetensors")[name].numpy().copy()
    scales[0, 0, 0] = scales.max() - 20
    edit_tensors(gpt_oss / "target", **{name.replace(".", "__"): scales})
    storage = plan_storage("nvfp4", read_target(gpt_oss / "target"), read_drafter(gpt_oss / "head"))
    kept = storage.references[0]["layers.1.experts_down_proj.scales"]
    np.testing.assert_array_equal(load_tensor(kept), scales)


def test_a_block_of_zeros_is_worth_zeros(dense: Path) -> None:
    weight = load_file(dense / "target" / "model.safetensors")["model.layers.1.mlp.down_proj.weight"].float()
    weight[3] = 0
    weight[:, 16:32] = 0
    edit_tensors(dense / "target", **{DOWN: weight.numpy()})
    target, _ = store(dense, "w4a16-nvfp4")
    name = "layers.1.down_proj"
    scales, overall = target[f"{name}.block_scales"], target[f"{name}.global_scale"]
    assert (scales[3].float() == 1).all()
    assert torch.equal(unpack_nvfp4(target[name], scales, overall), nvfp4(weight)[3])


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("precision", ["w4a16-nvfp4", "nvfp4-mlp"])
def test_a_weight_that_is_no_number_is_named(dense: Path, precision: str, value: float) -> None:
    weight = load_file(dense / "target" / "model.safetensors")["model.layers.1.mlp.down_proj.weight"].float().numpy()
    weight[2, 5] = value
    edit_tensors(dense / "target", **{DOWN: weight})
    with pytest.raises(
        CheckpointError, match=r"`model.layers.1.mlp.down_proj.weight` holds .* nan or infinite.*\[2, 5"
    ):
        store(dense, precision)


@pytest.mark.parametrize(("precision", "layer"), [("w4a16-nvfp4", "down_proj"), ("nvfp4-mlp", "down_proj")])
def test_columns_that_make_no_blocks_are_named_before_anything_is_written(
    tmp_path: Path, precision: str, layer: str
) -> None:
    save_target(tmp_path / "target", intermediate_size=72)
    save_drafter(tmp_path / "head")
    target, drafter = read_target(tmp_path / "target"), read_drafter(tmp_path / "head")
    with pytest.raises(CheckpointError, match=f"`layers.0.{layer}` has 72 columns, which blocks of 16 do not divide"):
        plan_storage(precision, target, drafter)


def test_a_recipe_of_experts_matches_no_layer_of_a_dense_target(dense: Path) -> None:
    with pytest.raises(CheckpointError, match=r"`nvfp4-experts` matches no layer of `.*target`: it quantizes experts"):
        plan_storage("nvfp4-experts", read_target(dense / "target"), read_drafter(dense / "head"))


def test_a_recipe_that_keeps_mxfp4_wants_some(qwen_moe: Path) -> None:
    with pytest.raises(CheckpointError, match=r"`mxfp4` keeps experts in MXFP4, and `.*target` has none"):
        plan_storage("mxfp4", read_target(qwen_moe / "target"), read_drafter(qwen_moe / "head"))


@pytest.mark.parametrize(
    ("form", "precision", "message"),
    [
        (
            "modelopt_fp8",
            "w4a16-nvfp4",
            "is quantized to fp8 already, and precision `w4a16-nvfp4` would round it a second",
        ),
        (
            "modelopt_nvfp4",
            "fp8",
            "is quantized to nvfp4 already, and precision `fp8` would round it a second time, to fp8",
        ),
    ],
)
def test_weights_are_not_rounded_to_a_second_format(dense: Path, form: str, precision: str, message: str) -> None:
    quantize_folder(dense / "target", dense / "plain", FORMS[form])
    with pytest.raises(CheckpointError, match=f"`model.layers.*{message}"):
        plan_storage(precision, read_target(dense / "target"), read_drafter(dense / "head"))


def test_weights_of_the_same_format_are_taken(dense: Path) -> None:
    quantize_folder(dense / "target", dense / "plain", FORMS["modelopt_nvfp4"])
    target, drafter = read_target(dense / "target"), read_drafter(dense / "head")
    assert plan_storage("nvfp4", target, drafter).layout


@pytest.mark.parametrize("precision", UNBUILDABLE)
def test_a_cache_in_fp8_is_refused_with_the_reason_and_the_nearest_recipe(
    precision: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match=f"`{precision}` cannot be built: TensorRT updates no cache of FP8 in place"):
        find_recipe(precision)
    assert run(["build", "--target", "tiny", "--precision", precision, "--dry-run"]) == 2
    text = capsys.readouterr().err
    assert "cache has type FP8 but must have type Float, Half, or BFloat16" in text
    assert f"--precision {precision.removesuffix('-kv')}, whose cache is bfloat16" in " ".join(text.split())


def test_every_recipe_of_a_build_has_its_tolerance_and_its_oldest_gpu() -> None:
    assert set(TOLERANCES) == set(BUILD_RECIPES)
    in_bfloat16 = {name for name in BUILD_RECIPES if find_recipe(name).compute_element == "BFLOAT16"}
    assert in_bfloat16 == set(_OLDEST_OF_PRECISION)


@pytest.mark.parametrize("precision", ["nvfp4-experts", "w4a16-nvfp4"])
def test_what_rounds_weights_alone_is_judged_by_its_weights(precision: str) -> None:
    recipe = find_recipe(precision)
    assert not recipe.rounds_rows
    assert not recipe.rounds_activations
    assert find_recipe("nvfp4-mlp").rounds_rows


TOO_LARGE = r"`layers\.1\.down_proj(\.weight)?` holds a magnitude of 3\.4e\+38, expected at most 1\.1e\+12"


def save_with_large_numbers(folder: Path, damaged: str) -> None:
    """A target and its head, one of them with a magnitude that trained weights never have."""
    save_target(folder / "target", num_hidden_layers=6)
    save_drafter(folder / "head")
    save_byte_tokenizer(folder / "target")
    name = "model.layers.1.mlp.down_proj.weight" if damaged == "target" else "layers.1.mlp.down_proj.weight"
    values = load_file(folder / damaged / "model.safetensors")[name].numpy().copy()
    values[0, :2] = [3.4e38, -3e38]
    edit_tensors(folder / damaged, **{name.replace(".", "__"): values})


@pytest.mark.parametrize("damaged", ["target", "head"])
@pytest.mark.parametrize("precision", ["int4", "int8", "bf16"])
def test_numbers_too_large_to_be_rounded_end_a_build_with_4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], precision: str, damaged: str
) -> None:
    save_with_large_numbers(tmp_path, damaged)
    pair = ["--target", str(tmp_path / "target"), "--drafter", str(tmp_path / "head")]
    assert run(["build", *pair, "-o", str(tmp_path / "out"), "--precision", precision]) == 4
    assert re.search(TOO_LARGE, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()
    assert all(any(left.iterdir()) for left in tmp_path.glob(".out*"))


@pytest.mark.parametrize("damaged", ["target", "head"])
@pytest.mark.parametrize("precision", ["fp8", "nvfp4"])
def test_numbers_too_large_to_be_rounded_are_not_stored(tmp_path: Path, precision: str, damaged: str) -> None:
    save_with_large_numbers(tmp_path, damaged)
    with pytest.raises(CheckpointError, match=TOO_LARGE):
        store(tmp_path, precision)
