"""Quantized checkpoints are worth what torch and transformers say they are, and what is unknown is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from peagle_trt.errors import CheckpointError
from peagle_trt.readers import checkpoint_files, read_target
from peagle_trt.readers.float_codes import decode_e2m1, decode_e4m3, decode_e8m0
from tests.support.checkpoints import copy_folder, edit_config
from tests.support.models import save_target
from tests.support.quantized import FORMS, modelopt, modelopt_gpt_oss, quantize_folder, to_mxfp4

SMALL: dict[str, Any] = {"num_hidden_layers": 2}


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("originals")
    save_target(folder / "llama", **SMALL)
    save_target(folder / "qwen3_moe", "Qwen3MoeForCausalLM", **SMALL)
    save_target(folder / "gpt_oss", "GptOssForCausalLM", **SMALL)
    return {path.name: path for path in folder.iterdir()}


def require_equal(quantized: Path, plain: Path) -> None:
    found, expected = read_target(quantized), read_target(plain)
    assert found.config == expected.config
    assert found.weights.keys() == expected.weights.keys()
    for name in expected.weights:
        values = found.weights.load(name)
        assert values.dtype == np.float32
        assert values.flags.c_contiguous
        np.testing.assert_array_equal(values, expected.weights.load(name), err_msg=name)


def test_every_code_of_a_byte_is_worth_what_torch_says() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    np.testing.assert_array_equal(decode_e4m3(codes.numpy()), codes.view(torch.float8_e4m3fn).float().numpy())
    np.testing.assert_array_equal(decode_e8m0(codes.numpy()), codes.view(torch.float8_e8m0fnu).float().numpy())


def test_the_low_nibble_comes_first() -> None:
    np.testing.assert_array_equal(decode_e2m1(np.array([[0x21, 0xF7]], np.uint8)), [[0.5, 1.0, 6.0, -6.0]])


@pytest.mark.parametrize("model", ["llama", "qwen3_moe"])
@pytest.mark.parametrize("form", FORMS)
def test_packed_projections_are_worth_what_torch_says(
    originals: dict[str, Path], tmp_path: Path, model: str, form: str
) -> None:
    folder = copy_folder(originals[model], tmp_path / "quantized")
    quantize_folder(folder, tmp_path / "plain", FORMS[form])
    require_equal(folder, tmp_path / "plain")


def test_both_layouts_of_gpt_oss_agree(originals: dict[str, Path], tmp_path: Path) -> None:
    folder = copy_folder(originals["gpt_oss"], tmp_path / "quantized")
    to_mxfp4(folder, tmp_path / "plain")
    require_equal(folder, tmp_path / "plain")


@pytest.mark.parametrize("form", ["modelopt_fp8", "modelopt_nvfp4"])
def test_stacks_that_modelopt_packed_are_worth_what_torch_says(
    originals: dict[str, Path], tmp_path: Path, form: str
) -> None:
    folder = copy_folder(originals["gpt_oss"], tmp_path / "quantized")
    modelopt_gpt_oss(folder, tmp_path / "plain", FORMS[form])
    require_equal(folder, tmp_path / "plain")


def test_gpt_oss_may_lie_expert_by_expert(originals: dict[str, Path], tmp_path: Path) -> None:
    folder = copy_folder(originals["gpt_oss"], tmp_path / "apart")
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if ".experts." in name]:
        stem, _, part = name.partition("experts.")
        for expert, values in enumerate(tensors.pop(name)):
            suffix = "bias" if part.endswith("_bias") else "weight"
            rows = values if suffix == "bias" else values.T
            sources = {"gate": rows[::2], "up": rows[1::2]} if part.startswith("gate_up") else {"down": rows}
            for source, value in sources.items():
                tensors[f"{stem}experts.{expert}.{source}_proj.{suffix}"] = value.contiguous()
    save_file(tensors, folder / "model.safetensors")
    require_equal(folder, originals["gpt_oss"])


def test_packed_tensors_say_where_their_codes_and_scales_lie(originals: dict[str, Path], tmp_path: Path) -> None:
    folder = copy_folder(originals["gpt_oss"], tmp_path / "quantized")
    to_mxfp4(folder, tmp_path / "plain")
    tensor = read_target(folder).weights["layers.1.experts_gate_up_proj"]
    assert (tensor.spec.dtype, tensor.spec.shape, tensor.spec.location) == ("MXFP4", (8, 192, 64), None)
    assert tensor.packed is not None
    assert (tensor.packed.form, tensor.packed.codes.shape, tensor.packed.scales.shape) == (
        "mxfp4",
        (8, 192, 2, 16),
        (8, 192, 2),
    )
    assert tensor.packed.codes.location is not None
    assert tensor.packed.scales.location is not None


def test_modelopts_own_file_is_enough(originals: dict[str, Path], tmp_path: Path) -> None:
    folder = copy_folder(originals["llama"], tmp_path / "quantized")
    quantize_folder(folder, tmp_path / "plain", FORMS["modelopt_nvfp4"])
    edit_config(folder, quantization_config=None)
    own = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}}
    (folder / "hf_quant_config.json").write_text(json.dumps(own))
    require_equal(folder, tmp_path / "plain")
    assert folder / "hf_quant_config.json" in checkpoint_files(folder)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "method": ({"quant_method": "awq"}, "`quantization_config.quant_method` must be `mxfp4` or `fp8`"),
    "no_method": ({"bits": 4}, "`quantization_config.quant_method` is missing"),
    "algorithm": (modelopt("W4A8_AWQ"), "`quantization_config.quant_algo` must be `FP8` or `NVFP4` or `W4A16_NVFP4`"),
    "group": (modelopt("NVFP4", group_size=32), "`quantization_config.group_size` must be a whole number from 16"),
    "modelopt_key": (modelopt("FP8", svd_rank=8), "`quantization_config.svd_rank` is not understood"),
    "fp8_format": ({"quant_method": "fp8", "fmt": "e5m2"}, "`quantization_config.fmt` must be `e4m3`"),
    "fp8_block": ({"quant_method": "fp8", "weight_block_size": [128]}, "must be two whole numbers"),
    "fp8_key": ({"quant_method": "fp8", "smoothing": 0.5}, "`quantization_config.smoothing` is not understood"),
    "format": (FORMS["compressed_fp8"].config | {"format": "marlin-24"}, "`quantization_config.format` must be"),
    "status": (
        FORMS["compressed_fp8"].config | {"quantization_status": "frozen"},
        "`quantization_config.quantization_status` must be `compressed`",
    ),
    "rotated": (
        FORMS["compressed_fp8"].config | {"transform_config": {"config_groups": {"u": {}}}},
        "`quantization_config.transform_config` must be empty",
    ),
    "pruned": (
        FORMS["compressed_fp8"].config | {"sparsity_config": {"format": "sparse-24-bitmask"}},
        "`quantization_config.sparsity_config` must be empty",
    ),
    "no_groups": (FORMS["compressed_fp8"].config | {"config_groups": {}}, "must be groups that are quantized alike"),
    "compression": ({}, "`quantization_config.quant_method` is missing"),
}


@pytest.mark.parametrize(("settings", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_way_to_quantize_that_is_not_known_is_refused(
    originals: dict[str, Path], tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    folder = copy_folder(originals["llama"], tmp_path / "quantized")
    edit_config(folder, quantization_config=settings)
    with pytest.raises(CheckpointError, match=message):
        read_target(folder)


WRONG_GROUPS: dict[str, tuple[dict[str, Any], str]] = {
    "bits": ({"num_bits": 4}, "num_bits` must be a whole number from 8 to 8"),
    "type": ({"type": "int"}, "type` must be `float`"),
    "symmetry": ({"symmetric": False}, "symmetric` must be true"),
    "strategy": ({"strategy": "group"}, "strategy` must be `tensor` or `channel` or `block`"),
    "structure": ({"strategy": "block", "block_structure": [1, 2, 3]}, "block_structure` must be two whole numbers"),
}


@pytest.mark.parametrize(("changes", "message"), WRONG_GROUPS.values(), ids=WRONG_GROUPS.keys())
def test_a_group_that_is_not_known_is_refused(
    originals: dict[str, Path], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    folder = copy_folder(originals["llama"], tmp_path / "quantized")
    config = json.loads(json.dumps(FORMS["compressed_fp8"].config))
    config["config_groups"]["group_0"]["weights"] |= changes
    edit_config(folder, quantization_config=config)
    with pytest.raises(CheckpointError, match=f"`quantization_config.config_groups.group_0.weights.{message}"):
        read_target(folder)


def test_two_descriptions_that_disagree_are_refused(originals: dict[str, Path], tmp_path: Path) -> None:
    folder = copy_folder(originals["llama"], tmp_path / "quantized")
    edit_config(folder, quantization_config=modelopt("FP8"))
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    with pytest.raises(CheckpointError, match=r"`quantization_config\.quant_algo` must be `NVFP4`, as"):
        read_target(folder)


def edit(folder: Path, **changes: torch.Tensor | None) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path) | {name.replace("__", "."): value for name, value in changes.items()}
    save_file({name: value for name, value in tensors.items() if value is not None}, path)


def test_codes_without_scales_are_named(originals: dict[str, Path], tmp_path: Path) -> None:
    folder = copy_folder(originals["llama"], tmp_path / "quantized")
    quantize_folder(folder, tmp_path / "plain", FORMS["modelopt_fp8"])
    edit(folder, model__layers__1__mlp__up_proj__weight_scale=None)
    with pytest.raises(CheckpointError, match=r"lacks 1 of .*`model\.layers\.1\.mlp\.up_proj\.weight_scale`"):
        read_target(folder)


def test_codes_that_the_configuration_does_not_mention_are_named(originals: dict[str, Path], tmp_path: Path) -> None:
    folder = copy_folder(originals["llama"], tmp_path / "quantized")
    quantize_folder(folder, tmp_path / "plain", FORMS["modelopt_fp8"])
    edit_config(folder, quantization_config=None)
    with pytest.raises(CheckpointError, match=r"expected a floating type, found F8_E4M3"):
        read_target(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_a_scale_that_is_none_is_named(originals: dict[str, Path], tmp_path: Path, value: float) -> None:
    folder = copy_folder(originals["llama"], tmp_path / "quantized")
    quantize_folder(folder, tmp_path / "plain", FORMS["modelopt_fp8"])
    edit(folder, model__layers__1__mlp__up_proj__weight_scale=torch.tensor(value))
    with pytest.raises(CheckpointError, match=r"scales `model\.layers\.1\.mlp\.up_proj\.weight_scale` must be finite"):
        read_target(folder).weights.load("layers.1.up_proj")


def test_a_code_that_is_no_number_is_named(originals: dict[str, Path], tmp_path: Path) -> None:
    folder = copy_folder(originals["qwen3_moe"], tmp_path / "quantized")
    quantize_folder(folder, tmp_path / "plain", FORMS["modelopt_fp8"])
    name = "model.layers.1.mlp.experts.3.up_proj.weight"
    codes = load_file(folder / "model.safetensors")[name].view(torch.uint8).clone()
    codes[2, 5] = 0x7F
    edit(folder, **{name: codes.view(torch.float8_e4m3fn)})
    with pytest.raises(CheckpointError, match=r"experts\.3\.up_proj\.weight` holds 1 value.* first at \[2, 5\]"):
        read_target(folder).weights.load("layers.1.experts_gate_up_proj")


def test_a_scale_of_mxfp4_that_is_none_is_named(originals: dict[str, Path], tmp_path: Path) -> None:
    folder = copy_folder(originals["gpt_oss"], tmp_path / "quantized")
    to_mxfp4(folder, tmp_path / "plain")
    name = "model.layers.0.mlp.experts.down_proj_scales"
    scales = load_file(folder / "model.safetensors")[name].clone()
    scales[7, 3, 1] = 255
    edit(folder, **{name: scales})
    with pytest.raises(CheckpointError, match="down_proj_scales` must be finite and not negative; 1 are not"):
        read_target(folder).weights.load("layers.0.experts_down_proj")


def test_rows_that_are_no_whole_blocks_are_refused(tmp_path: Path) -> None:
    save_target(tmp_path, "GptOssForCausalLM", intermediate_size=40, **SMALL)
    edit_config(tmp_path, quantization_config={"quant_method": "mxfp4"})
    edit(tmp_path, model__layers__0__mlp__experts__down_proj=None)
    with pytest.raises(CheckpointError, match="quantized in blocks of 32, but its rows have 40 values"):
        read_target(tmp_path)
