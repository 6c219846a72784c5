"""`convert --recipe`, `inspect --recipe` and `inspect --loaders` as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peagle_trt.cli.main import run
from peagle_trt.readers import read_head, read_target
from tests.support.models import save_drafter, save_target
from tests.support.quantized_export import edit_descriptions


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    save_target(folder / "target", num_hidden_layers=2)
    save_drafter(folder / "head")
    return folder


def typed(*words: object) -> int:
    return run([str(word) for word in words])


@pytest.mark.parametrize("words", [[], ["--to", "huggingface"]])
def test_a_target_is_quantized(
    pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    out = tmp_path / "out"
    assert typed("--json", "convert", pair / "target", "--recipe", "nvfp4", "-o", out, *words) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert (document["to"], document["recipe"], document["algorithm"]) == ("huggingface", "nvfp4", "NVFP4")
    assert document["size_bytes"] < document["stored_bytes"]
    assert "note: scales of activations are the constant 1" in captured.err
    assert read_target(out).config == read_target(pair / "target").config
    assert typed("inspect", out, "--loaders") == 0
    assert "ok       vLLM: layers left out" in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["--to", "trtllm"]])
def test_a_head_is_quantized(pair: Path, tmp_path: Path, words: list[str]) -> None:
    out = tmp_path / "out"
    assert typed("convert", pair / "head", "--recipe", "fp8", "-o", out, *words) == 0
    assert read_head(out).config.dialect == (words[1] if words else "vllm")
    assert typed("inspect", out, "--loaders") == 0


def test_a_quantized_head_is_converted_no_further(
    pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed("convert", pair / "head", "--recipe", "fp8", "-o", tmp_path / "once") == 0
    assert typed("convert", tmp_path / "once", "--to", "speculators", "-o", tmp_path / "twice") == 4
    assert "is quantized already" in capsys.readouterr().err


MISUSE = {
    "nothing": (["convert", "target"], "neither --to nor --recipe"),
    "no_recipe": (["convert", "target", "--to", "huggingface"], "needs --recipe"),
    "lone_scales": (["convert", "head", "--to", "vllm", "--scales", "s"], "--scales belongs to --recipe"),
    "unknown": (["convert", "target", "--recipe", "int3"], "unknown recipe `int3`"),
    "target_as_head": (["convert", "target", "--to", "vllm", "--recipe", "fp8"], "is a target"),
    "head_as_target": (["convert", "head", "--to", "huggingface", "--recipe", "fp8"], "is a head"),
    "dialect": (["convert", "head", "--to", "automodel", "--recipe", "fp8"], "no quantized heads"),
    "head_option": (["convert", "target", "--recipe", "fp8", "--mask-token-id", "3"], "belongs to a head"),
    "both": (["convert", "tiny", "--recipe", "fp8"], "`tiny` means a target and its head"),
}


@pytest.mark.parametrize("case", MISUSE)
def test_what_cannot_be_meant_is_misuse(
    pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    monkeypatch.chdir(pair)
    words, message = MISUSE[case]
    assert typed(*words, "-o", tmp_path / "out") == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["target", "head"])
def test_a_recipe_is_shown_with_its_bytes(pair: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert typed("--json", "inspect", pair / name, "--recipe", "fp8") == 0
    told = json.loads(capsys.readouterr().out)["recipe"]
    assert told["algorithm"] == "FP8"
    by_kind = {layer["kind"]: layer for layer in told["layers"]}
    assert (by_kind["qkv"]["weights"], by_kind["norms"]["weights"]) == ("fp8", "f32")
    # A code for each number of four bytes, a scale for weights and one for inputs.
    assert by_kind["o"]["written_bytes"] == by_kind["o"]["stored_bytes"] // 4 + 8
    assert sum(layer["written_bytes"] for layer in told["layers"]) == told["written_bytes"]
    assert typed("inspect", pair / name, "--recipe", "fp8") == 0
    assert "gate_up" in capsys.readouterr().out


def test_a_recipe_that_cannot_be_applied_is_refused_by_inspect(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("inspect", pair / "target", "--recipe", "nvfp4-experts") == 4
    assert "recipe `nvfp4-experts` matches no layer" in capsys.readouterr().err


def test_a_folder_that_a_loader_refuses_ends_with_4(
    pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed("convert", pair / "target", "--recipe", "nvfp4", "-o", tmp_path / "out") == 0
    edit_descriptions(tmp_path / "out", "nvfp4")
    capsys.readouterr()
    assert typed("--json", "inspect", tmp_path / "out", "--loaders") == 4
    document = json.loads(capsys.readouterr().out)
    assert not document["ok"]
    refused = [finding["what"] for finding in document["findings"] if finding["level"] == "refused"]
    assert refused == ["TensorRT-LLM: quant_algo"]
