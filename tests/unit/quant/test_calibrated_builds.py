"""Calibrated scales in a build: where they are stored, what a graph makes of them, and which are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file

from peagle_trt.errors import CheckpointError, UsageError
from peagle_trt.graph.batched import quantized
from peagle_trt.graph.batched.nodes import BATCHED_OPSET
from peagle_trt.graph.builder import GraphBuilder
from peagle_trt.quant import plan_storage, store_drafter, store_target
from peagle_trt.quant.activation_scales import ActivationScales, read_activation_scales, read_build_scales
from peagle_trt.quant.layer_recipes import LayerScheme
from peagle_trt.quant.packing import StoredTensor, divide_columns, pack
from peagle_trt.quant.store import _write
from peagle_trt.quant.unpacking import load_unpacked
from peagle_trt.readers import read_drafter, read_target
from peagle_trt.readers.safetensors_file import load_tensor
from tests.support.models import save_drafter, save_target
from tests.support.quantized import nvfp4
from tests.unit.graph.test_quantized_linear import round_nvfp4

LAYERS = {"target": 6, "drafter": 2}
PARTS = (
    *(f"self_attn.{part}_proj" for part in "qkvo"),
    *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    save_target(folder / "target")
    save_drafter(folder / "head", draft_vocab_size=120)
    return folder


def values(model: str) -> dict[str, np.ndarray]:
    """A number of its own for every linear, as scripts/calibrate names them."""
    prefix = "model." if model == "target" else ""
    modules = [f"{prefix}layers.{layer}.{part}" for layer in range(LAYERS[model]) for part in PARTS]
    modules += ["fc", "lm_head"] if model == "drafter" else []
    return {f"{name}.input_scale": np.array(0.01 * number, np.float32) for number, name in enumerate(modules, 1)}


def scales(
    folder: Path, model: str, changes: dict[str, np.ndarray | None] | None = None, recipe: str = "fp8-kv"
) -> ActivationScales:
    wanted = {**values(model), **(changes or {})}
    path = folder / f"{model}.safetensors"
    save_file({name: value for name, value in wanted.items() if value is not None}, path, metadata={"recipe": recipe})
    return read_activation_scales(path)


def test_projections_take_the_largest_scale_of_what_was_fused(folder: Path, tmp_path: Path) -> None:
    cache = {"model.layers.0.self_attn.k_proj.k_scale": np.array(0.5, np.float32)}
    target, drafter = read_target(folder / "target"), read_drafter(folder / "head")
    store_target("fp8", target, tmp_path / "t.safetensors", scales(tmp_path, "target", cache))
    store_drafter("fp8", drafter, target, tmp_path / "d.safetensors", scales(tmp_path, "drafter"))
    for model, prefix in (("target", "model."), ("drafter", "")):
        found, given = load_file(tmp_path / f"{model[0]}.safetensors"), values(model)
        assert not [name for name in found if name.endswith(".row_input_scale")]
        for layer in range(LAYERS[model]):
            own = f"{prefix}layers.{layer}"
            assert found[f"layers.{layer}.qkv_proj.input_scale"] == given[f"{own}.self_attn.v_proj.input_scale"]
            assert found[f"layers.{layer}.gate_up_proj.input_scale"] == given[f"{own}.mlp.up_proj.input_scale"]
            assert found[f"layers.{layer}.down_proj.input_scale"] == given[f"{own}.mlp.down_proj.input_scale"]


REFUSED: dict[str, tuple[dict[str, np.ndarray | None], str, str]] = {
    "missing": (
        {"model.layers.1.self_attn.o_proj.input_scale": None},
        "fp8",
        "lacks `model.layers.1.self_attn.o_proj.input_scale`",
    ),
    "other": (
        {"model.layers.9.mlp.up_proj.input_scale": np.array(1, np.float32)},
        "fp8",
        "`model.layers.9.mlp.up_proj.input_scale` belongs to no layer",
    ),
    "format": ({}, "nvfp4", "measured by recipe `fp8-kv`, whose scales are not those of NVFP4"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_scales_that_do_not_fit_are_refused_before_anything_is_written(folder: Path, tmp_path: Path, case: str) -> None:
    changes, precision, message = REFUSED[case]
    target, drafter = read_target(folder / "target"), read_drafter(folder / "head")
    found = scales(tmp_path, "target", changes)
    with pytest.raises(CheckpointError, match=message):
        plan_storage(precision, target, drafter, target_scales=found)


@pytest.mark.parametrize("precision", ["bf16", "native", "int4"])
def test_a_recipe_that_leaves_activations_alone_takes_no_scales(folder: Path, tmp_path: Path, precision: str) -> None:
    target, drafter = read_target(folder / "target"), read_drafter(folder / "head")
    with pytest.raises(UsageError, match=f"which precision `{precision}` leaves alone"):
        plan_storage(precision, target, drafter, drafter_scales=scales(tmp_path, "drafter"))


def test_columns_of_awq_are_refused_by_name(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.up_proj.pre_quant_scale"
    with pytest.raises(CheckpointError, match=f"`{name}`, by which AWQ scales a weight's columns"):
        scales(tmp_path, "target", {name: np.ones(64, np.float32)})


def product(
    folder: Path,
    form: str,
    matrix: np.ndarray,
    rows: np.ndarray,
    input_scale: float | None,
    columns: np.ndarray | None = None,
) -> np.ndarray:
    whole = StoredTensor(name="layers.0.down_proj", dtype="F32", shape=matrix.shape, produce=lambda: matrix)
    scheme = LayerScheme(weights=form, activations=form)  # type: ignore[arg-type]
    kept: list[StoredTensor] = []
    if columns is not None:
        whole, column_scales = divide_columns(whole, columns)
        kept.append(column_scales)
    stored = _write(folder / "weights.safetensors", [*pack(whole, scheme, input_scale), *kept])
    builder = GraphBuilder("linear", stored, opset=BATCHED_OPSET, element="FLOAT")
    given = builder.input("rows", "FLOAT", ["B", "S", matrix.shape[1]])
    builder.op("Identity", quantized.linear(builder, given, "layers.0.down_proj"), output="product")
    builder.output("product", "FLOAT", ["B", "S", matrix.shape[0]])
    (folder / "linear.onnx").write_bytes(builder.model().SerializeToString())
    found: np.ndarray = onnxruntime.InferenceSession(str(folder / "linear.onnx")).run(["product"], {"rows": rows})[0]
    return found


def test_fp8_divides_by_the_measured_scale_and_cuts_off_what_lies_beyond(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    matrix = generator.normal(0, 0.05, (16, 64)).astype(np.float32)
    rows = generator.normal(0, 2, (1, 3, 64)).astype(np.float32)
    rows[0, 1, 7] = 500
    weight, values = torch.from_numpy(matrix), torch.from_numpy(rows)
    scale = weight.abs().max() / 448
    weight = (weight / scale).to(torch.float8_e4m3fn).float() * scale
    values = (values / 0.02).clamp(-448, 448).to(torch.float8_e4m3fn).float() * 0.02
    expected = (values.double() @ weight.double().T).numpy()
    np.testing.assert_allclose(product(tmp_path, "fp8", matrix, rows, 0.02), expected, atol=1e-4, rtol=1e-5)


def test_nvfp4_takes_the_measured_scale_for_all_blocks(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    matrix = generator.normal(0, 0.05, (16, 64)).astype(np.float32)
    # Every block of 16 reaches the same largest number, so one row's blocks tell the whole rule.
    rows = generator.choice(np.array([-6, -4, -3, -2, -1.5, -1, 0.5, 1, 2, 6], np.float32), (1, 3, 64))
    rows[0, :, ::16] = 6
    worth = nvfp4(torch.from_numpy(matrix))[3].double().numpy()
    # 6 / (6 * scale) is 256, which E4M3 holds: the rows are numbers of the format, and stay.
    found = product(tmp_path, "nvfp4", matrix, rows, 1 / 256)
    np.testing.assert_allclose(found, rows.astype(np.float64) @ worth.T, atol=1e-4, rtol=1e-5)
    # Blocks may reach 448 * 6 * scale; these would need 600, so they are cut off at 448 / 600.
    cut = product(tmp_path, "nvfp4", matrix, rows, 1 / 600)
    assert np.abs(cut - found).max() > 0.01


def awq_case() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A matrix, rows with two large columns, and the scales that take those columns' size away from the rows."""
    generator = np.random.default_rng(5)
    matrix = generator.normal(0, 0.05, (16, 64)).astype(np.float32)
    rows = generator.normal(0, 1, (1, 3, 64)).astype(np.float32)
    rows[..., [3, 40]] *= 50
    columns = np.ones(64, np.float32)
    columns[[3, 40]] = 1 / 25
    return matrix, rows, columns


@pytest.mark.parametrize("input_scale", [None, 0.01])
def test_awq_rounds_scaled_rows_and_divided_columns(tmp_path: Path, input_scale: float | None) -> None:
    matrix, rows, columns = awq_case()
    values = torch.from_numpy(rows * columns)[0]
    scale = values.abs().amax(1, keepdim=True) / 2688 if input_scale is None else torch.tensor(input_scale)
    rounded = round_nvfp4(values / scale) * scale
    worth = nvfp4(torch.from_numpy(matrix / columns))[3]
    expected = (rounded.double() @ worth.double().T).numpy()[None]
    found = product(tmp_path, "nvfp4", matrix, rows, input_scale, columns)
    np.testing.assert_allclose(found, expected, atol=2e-4, rtol=1e-5)
    # Where columns are left alone, the two large ones take the steps of their blocks for themselves.
    plain = product(tmp_path, "nvfp4", matrix, rows, None)
    exact = rows.astype(np.float64) @ matrix.T
    assert np.linalg.norm(expected - exact) < np.linalg.norm(plain - exact)


def awq_scales(folder: Path, changes: dict[str, np.ndarray | None] | None = None) -> ActivationScales:
    generator = np.random.default_rng(7)
    widths = {"down_proj": 96}
    found = values("target") | {
        f"{name.removesuffix('.input_scale')}.pre_quant_scale": generator.uniform(
            0.5, 2, widths.get(name.split(".")[4], 64)
        ).astype(np.float32)
        for name in values("target")
    }
    wanted = {**found, **(changes or {})}
    path = folder / "awq.safetensors"
    kept = {name: value for name, value in wanted.items() if value is not None}
    save_file(kept, path, metadata={"recipe": "nvfp4-awq"})
    return read_build_scales(path)


def test_parts_that_are_multiplied_as_one_share_the_mean_of_their_columns(folder: Path, tmp_path: Path) -> None:
    scales, target = awq_scales(tmp_path), read_target(folder / "target")
    stored = store_target("nvfp4-awq", target, tmp_path / "t.safetensors", scales)
    given = [scales.columns[f"model.layers.1.self_attn.{part}_proj.pre_quant_scale"] for part in "qkv"]
    mean = load_tensor(stored["layers.1.qkv_proj.column_scales"])
    np.testing.assert_allclose(mean, sum(given) / 3, rtol=1e-6)
    assert (
        load_tensor(stored["layers.1.qkv_proj.input_scale"])
        == values("target")["model.layers.1.self_attn.v_proj.input_scale"]
    )
    whole = np.concatenate([target.weights.load(f"layers.1.{part}_proj") for part in "qkv"])
    worth = nvfp4(torch.from_numpy(whole / mean))[3].numpy() * mean
    np.testing.assert_allclose(load_unpacked(stored, "layers.1.qkv_proj"), worth, rtol=1e-5, atol=1e-7)


def test_a_target_of_awq_is_close_to_the_unquantized_one(folder: Path, tmp_path: Path) -> None:
    target = read_target(folder / "target")
    stored = store_target("nvfp4-awq", target, tmp_path / "t.safetensors", awq_scales(tmp_path))
    for part in ("o_proj", "down_proj"):
        plain = target.weights.load(f"layers.3.{part}")
        error = np.linalg.norm(load_unpacked(stored, f"layers.3.{part}") - plain) / np.linalg.norm(plain)
        # NVFP4 loses a tenth of normal numbers, and columns of other sizes a little more.
        assert 0.02 < error < 0.15


DOWN_COLUMNS = "model.layers.2.mlp.down_proj.pre_quant_scale"
REFUSED_COLUMNS: dict[str, tuple[dict[str, np.ndarray | None], str]] = {
    "missing": ({DOWN_COLUMNS: None}, f"lacks `{DOWN_COLUMNS}`"),
    "width": ({DOWN_COLUMNS: np.ones(64, np.float32)}, f"`{DOWN_COLUMNS}` is for 64 columns, and the matrix has 96"),
    "foreign": (
        {"model.layers.9.mlp.down_proj.pre_quant_scale": np.ones(96, np.float32)},
        "`model.layers.9.mlp.down_proj.pre_quant_scale` belongs to no layer",
    ),
}


@pytest.mark.parametrize("case", REFUSED_COLUMNS)
def test_columns_that_do_not_fit_are_refused_before_anything_is_written(
    folder: Path, tmp_path: Path, case: str
) -> None:
    changes, message = REFUSED_COLUMNS[case]
    target, drafter = read_target(folder / "target"), read_drafter(folder / "head")
    with pytest.raises(CheckpointError, match=message):
        plan_storage("nvfp4-awq", target, drafter, target_scales=awq_scales(tmp_path, changes))


def test_awq_wants_a_file_and_other_recipes_refuse_its_columns(folder: Path, tmp_path: Path) -> None:
    target, drafter = read_target(folder / "target"), read_drafter(folder / "head")
    with pytest.raises(CheckpointError, match=r"scales of their columns, and no file of scales is given"):
        plan_storage("nvfp4-awq", target, drafter)
    with pytest.raises(CheckpointError, match="by which AWQ scales a weight's columns") as caught:
        plan_storage("nvfp4", target, drafter, target_scales=awq_scales(tmp_path))
    assert caught.value.hint == "calibrate with recipe `nvfp4`, or build with --precision nvfp4-awq"
