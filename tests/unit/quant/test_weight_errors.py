"""How far a build's matrices are from their checkpoints', against torch and numpy on the files themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from peagle_trt.errors import CheckpointError
from peagle_trt.quant import open_stored, store_drafter, store_target
from peagle_trt.quant.activation_scales import ActivationScales
from peagle_trt.quant.weight_errors import WeightError, measure_build, predict_errors, relative_error, worst
from peagle_trt.readers import read_drafter, read_target
from tests.support.checkpoints import edit_tensors
from tests.support.models import FEED_FORWARD, HIDDEN, save_drafter, save_target
from tests.support.quantized import to_mxfp4

MODULES = (
    *(f"self_attn.{part}_proj" for part in ("q", "k", "v", "o")),
    *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
)
PROJECTIONS = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("errors")
    save_target(folder / "target")
    save_drafter(folder / "head", draft_vocab_size=120)
    return folder


def measured(folder: Path, out: Path, precision: str) -> dict[tuple[str, str], WeightError]:
    target, drafter = read_target(folder / "target"), read_drafter(folder / "head")
    stored = (
        store_target(precision, target, out / f"{precision}.target.safetensors"),
        store_drafter(precision, drafter, target, out / f"{precision}.drafter.safetensors"),
    )
    found = measure_build(precision, target, drafter, *stored)
    return {(each.model, each.name): each for each in found}


@pytest.mark.parametrize("precision", ["int4", "int8", "fp8", "nvfp4", "w4a16-nvfp4"])
def test_what_is_predicted_is_what_is_stored(pair: Path, tmp_path: Path, precision: str) -> None:
    stored = measured(pair, tmp_path, precision)
    predicted = predict_errors(precision, read_target(pair / "target"), read_drafter(pair / "head"))
    assert {("target", f"layers.3.{name}") for name in PROJECTIONS} <= {(e.model, e.name) for e in predicted}
    assert [stored[each.model, each.name] for each in predicted] == predicted


def test_columns_that_awq_divides_are_counted_as_they_are_worth(pair: Path, tmp_path: Path) -> None:
    target, drafter = read_target(pair / "target"), read_drafter(pair / "head")
    modules = {
        f"model.layers.{layer}.{module}": FEED_FORWARD if module == "mlp.down_proj" else HIDDEN
        for layer in range(target.config.num_layers)
        for module in MODULES
    }
    numbers = np.random.default_rng(8)
    scales = ActivationScales(
        path=tmp_path / "scales.safetensors",
        recipe="nvfp4-awq",
        values={f"{module}.input_scale": 1.0 for module in modules},
        columns={
            f"{module}.pre_quant_scale": numbers.uniform(0.2, 5, columns).astype(np.float32)
            for module, columns in modules.items()
        },
    )
    stored = (
        store_target("nvfp4-awq", target, tmp_path / "target.safetensors", scales),
        store_drafter("nvfp4-awq", drafter, target, tmp_path / "drafter.safetensors"),
    )
    found = {(each.model, each.name): each for each in measure_build("nvfp4-awq", target, drafter, *stored)}
    predicted = predict_errors("nvfp4-awq", target, drafter, scales)
    assert [found[each.model, each.name].error for each in predicted] == pytest.approx(
        [each.error for each in predicted], rel=1e-5
    )
    without = {each.name: each.error for each in predict_errors("nvfp4", target, drafter) if each.model == "target"}
    assert found["target", "layers.2.down_proj"].error != pytest.approx(without["layers.2.down_proj"], rel=1e-3)


def test_an_error_of_fp8_is_that_of_torch(pair: Path, tmp_path: Path) -> None:
    matrix = load_file(pair / "target" / "model.safetensors")["model.layers.2.mlp.down_proj.weight"].double()
    scale = matrix.abs().max() / 448
    rounded = (matrix / scale).float().to(torch.float8_e4m3fn).double() * scale
    expected = ((rounded - matrix).norm() / matrix.norm()).item()
    assert measured(pair, tmp_path, "fp8")["target", "layers.2.down_proj"].error == pytest.approx(expected, rel=1e-3)


def test_halves_are_told_and_float32_is_not(pair: Path, tmp_path: Path) -> None:
    halves = measured(pair, tmp_path, "bf16")
    matrix = load_file(pair / "target" / "model.safetensors")["model.layers.2.self_attn.o_proj.weight"]
    expected = ((matrix.bfloat16().float() - matrix).norm() / matrix.norm()).item()
    assert halves["target", "layers.2.o_proj"].error == pytest.approx(expected, rel=1e-5)
    assert measured(pair, tmp_path, "fp32") == {}
    assert all("norm" not in name for _, name in halves)


def test_experts_in_mxfp4_are_the_checkpoint_s_own(tmp_path: Path) -> None:
    save_target(tmp_path / "target", "GptOssForCausalLM")
    to_mxfp4(tmp_path / "target", tmp_path / "plain")
    save_drafter(tmp_path / "head")
    found = measured(tmp_path, tmp_path, "bf16")
    kept = {name for (_, name), each in found.items() if each.form == "mxfp4"}
    assert "layers.1.experts_down_proj" in kept
    assert {found["target", name].error for name in kept} == {0.0}


def test_a_file_that_holds_other_numbers_is_told(pair: Path, tmp_path: Path) -> None:
    measured(pair, tmp_path, "fp8")
    path = tmp_path / "fp8.target.safetensors"
    raw = bytearray(path.read_bytes())
    place = open_stored(path)["layers.0.o_proj"].location
    assert place is not None
    raw[place.offset_bytes : place.offset_bytes + place.length_bytes] = bytes(place.length_bytes)
    path.write_bytes(raw)
    target, drafter = read_target(pair / "target"), read_drafter(pair / "head")
    found = measure_build("fp8", target, drafter, open_stored(path), open_stored(tmp_path / "fp8.drafter.safetensors"))
    assert worst(found, 1) == [WeightError(model="target", name="layers.0.o_proj", form="fp8", error=1.0)]


def test_a_matrix_of_zeros_is_not_off() -> None:
    zeros, ones = np.zeros((3, 4), np.float32), np.ones((3, 4), np.float32)
    assert (relative_error(zeros, zeros), relative_error(zeros, ones)) == (0.0, 1.0)
    assert relative_error(ones, zeros) == float("inf")


def test_a_value_that_is_no_number_is_named(tmp_path: Path) -> None:
    save_target(tmp_path / "target")
    save_drafter(tmp_path / "head")
    matrix = np.zeros((HIDDEN, FEED_FORWARD), np.float32)
    matrix[1, 2] = np.nan
    edit_tensors(tmp_path / "target", **{"model.layers.1.mlp.down_proj.weight": matrix})
    with pytest.raises(
        CheckpointError, match=r"`model\.layers\.1\.mlp\.down_proj\.weight` holds 1 value\(s\) that are nan"
    ):
        predict_errors("fp8", read_target(tmp_path / "target"), read_drafter(tmp_path / "head"))
