"""What calibration refuses before it loads a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle_trt.errors import CheckpointError, MachineError, UsageError
from peagle_trt.quant.calibration import find_calibration
from peagle_trt.quant.calibration import model as calibrated
from peagle_trt.quant.calibration.model import encode_turns, read_calibratable
from tests.support.models import save_target
from tests.support.quantized import FORMS, quantize_folder


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dense")
    save_target(folder, num_hidden_layers=1)
    return folder


def test_a_target_that_fits_is_taken(dense: Path) -> None:
    assert read_calibratable(dense, find_calibration("nvfp4")).config.num_layers == 1


def test_a_file_is_refused(dense: Path) -> None:
    with pytest.raises(UsageError, match="is no folder") as caught:
        read_calibratable(dense / "model.safetensors", find_calibration("fp8"))
    assert "GGUF" in caught.value.hint


def test_a_recipe_of_experts_is_refused_where_there_are_none(dense: Path) -> None:
    with pytest.raises(UsageError, match="quantizes experts, and"):
        read_calibratable(dense, find_calibration("nvfp4-experts"))


def test_rows_that_blocks_do_not_divide_are_named(tmp_path: Path) -> None:
    save_target(tmp_path, num_hidden_layers=1, intermediate_size=72)
    with pytest.raises(CheckpointError, match=r"`model\.layers\.0\.mlp\.down_proj\.weight` has rows of 72"):
        read_calibratable(tmp_path, find_calibration("nvfp4"))
    assert read_calibratable(tmp_path, find_calibration("fp8")).config.intermediate_size == 72


def test_a_target_larger_than_memory_is_refused(dense: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrated.os, "sysconf", lambda name: 1)
    with pytest.raises(MachineError, match="bytes as float32, and this machine has 1"):
        read_calibratable(dense, find_calibration("fp8"))


def test_no_prompts_are_refused(dense: Path) -> None:
    with pytest.raises(UsageError, match="no texts to calibrate on"):
        encode_turns(read_calibratable(dense, find_calibration("fp8")), [])


def test_a_target_without_a_tokenizer_is_named(dense: Path) -> None:
    with pytest.raises(CheckpointError, match="has no tokenizer"):
        encode_turns(read_calibratable(dense, find_calibration("fp8")), ["hello"])


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3MoeForCausalLM"])
def test_a_target_that_is_quantized_already_is_refused(architecture: str, tmp_path: Path) -> None:
    save_target(tmp_path / "target", architecture, num_hidden_layers=1)
    quantize_folder(tmp_path / "target", tmp_path / "plain", FORMS["modelopt_fp8"])
    with pytest.raises(CheckpointError, match="is quantized already, as fp8"):
        read_calibratable(tmp_path / "target", find_calibration("fp8"))
