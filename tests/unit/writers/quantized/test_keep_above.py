"""Layers that rounding moves too far stay as they are, with what loaders multiply with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from peagle_trt.cli.main import run
from peagle_trt.errors import PlanError, UsageError
from peagle_trt.quant.layer_recipes import load_layer_recipe
from peagle_trt.readers import read_head, read_target
from peagle_trt.writers.loaders import judge_folder
from peagle_trt.writers.quantized import plan_head, plan_target, quantize_head, quantize_target
from peagle_trt.writers.quantized.left_out import weight_errors
from peagle_trt.writers.quantized.survey import survey
from tests.support.checkpoints import copy_folder
from tests.support.quantized import unpack_nvfp4

ROUGH = "model.layers.1.self_attn.k_proj"


def between_codes(matrix: torch.Tensor) -> torch.Tensor:
    """Of each block the first number becomes E2M1's 6, and the others lie between 4 and 6."""
    numbers = torch.full_like(matrix, 4.95 * 0.02)
    numbers[:, ::16] = 6 * 0.02
    return numbers


@pytest.fixture
def rough(sources: Path, tmp_path: Path) -> Path:
    """A target one of whose matrices is made of numbers that lie between two codes."""
    folder = copy_folder(sources / "llama", tmp_path / "rough")
    tensors = load_file(folder / "model.safetensors")
    tensors[f"{ROUGH}.weight"] = between_codes(tensors[f"{ROUGH}.weight"])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def errors_of(folder: Path, recipe: str) -> dict[str, float]:
    plan = plan_target(read_target(folder), load_layer_recipe(recipe))
    return weight_errors(plan, survey(plan, lambda _: None), lambda _: None)


def accepts(folder: Path) -> bool:
    return all(finding.level != "refused" for finding in judge_folder(folder))


def left_out(folder: Path) -> list[str]:
    found: list[str] = json.loads((folder / "hf_quant_config.json").read_text())["quantization"]["exclude_modules"]
    return found


@pytest.mark.parametrize("recipe", ["nvfp4", "fp8"])
def test_errors_are_those_of_what_is_written(sources: Path, tmp_path: Path, recipe: str) -> None:
    quantize_target(read_target(sources / "llama"), load_layer_recipe(recipe), tmp_path / "out")
    plain, written = (load_file(folder / "model.safetensors") for folder in (sources / "llama", tmp_path / "out"))
    errors = errors_of(sources / "llama", recipe)
    assert len(errors) == 14
    for module, error in errors.items():
        weight = plain[f"{module}.weight"].double()
        codes, scale = written[f"{module}.weight"], written[f"{module}.weight_scale"]
        if recipe == "fp8":
            found = codes.double() * scale.double()
        else:
            found = unpack_nvfp4(codes, scale, written[f"{module}.weight_scale_2"]).double()
        assert error == pytest.approx(((found - weight).norm() / weight.norm()).item(), rel=1e-4)


def test_what_is_multiplied_together_stays_together(rough: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    errors = errors_of(rough, "nvfp4")
    others = max(error for module, error in errors.items() if module != ROUGH)
    limit = (others + errors[ROUGH]) / 2
    assert others < errors[ROUGH]
    recipe = load_layer_recipe("nvfp4")
    found = quantize_target(read_target(rough), recipe, tmp_path / "out", keep_above=limit, progress=lines.append)
    assert found.kept == ("model.layers.1.self_attn.[qkv]_proj",)
    assert f"3 of 14 layers stay as they are, those above {limit:g}" in found.notes[0]
    assert f"`{ROUGH}` (" in found.notes[0]
    tensors, plain = load_file(tmp_path / "out" / "model.safetensors"), load_file(rough / "model.safetensors")
    for part in "qkv":
        name = f"model.layers.1.self_attn.{part}_proj"
        assert torch.equal(tensors[f"{name}.weight"], plain[f"{name}.weight"])
        assert name in left_out(tmp_path / "out")
        assert tensors[name.replace("layers.1", "layers.0") + ".weight"].dtype == torch.uint8
    assert accepts(tmp_path / "out")


def test_experts_of_a_layer_stay_together(sources: Path, tmp_path: Path) -> None:
    folder = copy_folder(sources / "qwen" / "target", tmp_path / "rough")
    (shard,) = list(folder.glob("*.safetensors"))
    tensors = load_file(shard)
    name = "model.layers.1.mlp.experts.2.down_proj"
    tensors[f"{name}.weight"] = between_codes(tensors[f"{name}.weight"])
    save_file(tensors, shard, metadata={"format": "pt"})
    errors = errors_of(folder, "nvfp4")
    limit = (errors[name] + max(error for module, error in errors.items() if module != name)) / 2
    found = quantize_target(read_target(folder), load_layer_recipe("nvfp4"), tmp_path / "out", keep_above=limit)
    assert found.kept == ("model.layers.1.mlp.experts.*",)
    assert "model.layers.1.mlp.experts*" in left_out(tmp_path / "out")
    assert accepts(tmp_path / "out")


def test_mxfp4_that_is_cast_counts_as_quantized(sources: Path, tmp_path: Path) -> None:
    recipe = load_layer_recipe("nvfp4")
    target = read_target(sources / "gpt-oss" / "target")
    found = quantize_target(target, recipe, tmp_path / "out", keep_above=1e-6)
    assert all("experts" not in pattern for pattern in found.kept)
    tensors = load_file(next((tmp_path / "out").glob("*.safetensors")))
    assert tensors["model.layers.0.mlp.experts.down_proj"].dtype == torch.uint8
    assert tensors["model.layers.0.self_attn.q_proj.weight"].dtype == torch.bfloat16


@pytest.mark.parametrize("dialect", ["vllm", "trtllm"])
def test_of_a_head_a_kind_stays_in_all_layers(sources: Path, tmp_path: Path, dialect: str) -> None:
    head = read_head(sources / "head")
    plan = plan_head(head, None, load_layer_recipe("nvfp4"), "vllm")
    errors = weight_errors(plan, survey(plan, lambda _: None), lambda _: None)
    (worst,) = [module for module, error in errors.items() if error == max(errors.values())]
    limit = sorted(errors.values())[-2]
    found = quantize_head(
        head,
        None,
        load_layer_recipe("nvfp4"),
        dialect,
        tmp_path / "out",
        keep_above=limit,  # type: ignore[arg-type]
    )
    (kind,) = found.kept
    assert kind == next(each.kind for each in plan.rounded if each.module == worst)
    assert accepts(tmp_path / "out")


def test_a_limit_that_leaves_nothing_out_is_told(sources: Path, tmp_path: Path) -> None:
    found = quantize_target(read_target(sources / "llama"), load_layer_recipe("fp8"), tmp_path / "out", keep_above=0.9)
    assert found.kept == ()
    assert found.notes[0].startswith("--keep-above 0.9 leaves nothing out: the worst of 14 layers, `model.layers.")


def test_a_limit_that_leaves_nothing_quantized_is_refused(sources: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--keep-above 1e-06 leaves nothing quantized of"):
        quantize_target(read_target(sources / "llama"), load_layer_recipe("fp8"), tmp_path / "out", keep_above=1e-6)
    assert not list(tmp_path.iterdir())


def test_a_recipe_that_rounds_nothing_has_nothing_to_leave_out(sources: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="recipe `bf16` rounds nothing of"):
        quantize_target(read_target(sources / "llama"), load_layer_recipe("bf16"), tmp_path / "out", keep_above=0.1)


@pytest.mark.parametrize("limit", [float("nan"), -0.1, 0.0, float("inf")])
def test_a_limit_that_is_none_is_refused(sources: Path, tmp_path: Path, limit: float) -> None:
    with pytest.raises(PlanError, match="expected a number above 0"):
        quantize_target(read_target(sources / "llama"), load_layer_recipe("fp8"), tmp_path / "out", keep_above=limit)


def test_a_run_that_was_stopped_goes_on(rough: Path, tmp_path: Path) -> None:
    recipe, target = load_layer_recipe("nvfp4"), read_target(rough)
    whole = quantize_target(target, recipe, tmp_path / "whole", keep_above=0.11, max_shard_bytes=50_000)

    def stop(line: str) -> None:
        if line.startswith("writing shard 3"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_target(target, recipe, tmp_path / "out", keep_above=0.11, max_shard_bytes=50_000, progress=stop)
    again = quantize_target(target, recipe, tmp_path / "out", keep_above=0.11, max_shard_bytes=50_000)
    assert (again.resumed_shards, again.kept) == (2, whole.kept)
    for path in (tmp_path / "whole").glob("*.safetensors"):
        assert path.read_bytes() == (tmp_path / "out" / path.name).read_bytes()


def test_the_command_tells_what_stayed(rough: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["convert", str(rough), "--recipe", "nvfp4", "--keep-above"]
    assert run(["--json", *words, "0.11", "-o", str(tmp_path / "out")]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["kept"] == ["model.layers.1.self_attn.[qkv]_proj"]
    assert "3 of 14 layers stay as they are" in told.err
    assert run(["-q", "--json", *words, "nan", "-o", str(tmp_path / "other")]) == 2
    assert "--keep-above" in json.loads(capsys.readouterr().out)["error"]["message"]


def test_the_limit_belongs_to_a_recipe(sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["convert", str(sources / "head"), "--to", "vllm", "--keep-above", "0.1", "-o", str(tmp_path / "out")]
    assert run(["-q", "--json", *words]) == 2
    assert "--keep-above belongs to --recipe" in json.loads(capsys.readouterr().out)["error"]["message"]
