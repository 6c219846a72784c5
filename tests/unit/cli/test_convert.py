"""`convert` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from peagle_trt import catalog
from peagle_trt.cli.main import run
from peagle_trt.readers import read_head
from peagle_trt.readers.safetensors_file import map_bytes
from peagle_trt.writers import WRITERS
from tests.support.checkpoints import edit_config
from tests.support.models import save_drafter


def convert(*words: object) -> int:
    return run(["convert", *map(str, words)])


@pytest.mark.parametrize("dialect", ["vllm", "speculators", "trtllm"])
def test_a_shipped_head_keeps_its_bits(tmp_path: Path, dialect: str) -> None:
    assert convert("tiny", "--to", dialect, "-o", tmp_path / "head") == 0
    ours = read_head(catalog.drafter_path(catalog.find_entry("tiny")))
    theirs = read_head(tmp_path / "head")
    for name, lazy in ours.weights.items():
        np.testing.assert_array_equal(map_bytes(theirs.weights[name].spec), map_bytes(lazy.spec))
    assert (tmp_path / "head" / "config.json").exists()


def test_a_dialect_without_words_for_a_head_ends_with_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # The tiny target has four layers, whose usual three would not be distinct.
    assert convert("tiny", "--to", "automodel", "-o", tmp_path / "head") == 4
    assert "the automodel dialect cannot hold the auxiliary layers" in capsys.readouterr().err


def test_the_result_is_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--json", "convert", "tiny", "--to", "vllm", "-o", str(tmp_path / "head")]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert (document["ok"], document["from"], document["to"]) == (True, "vllm", "vllm")
    assert document["num_tensors"] == 22
    assert "note: serve it with --speculative-config" in captured.err


def test_the_dialects_are_those_that_users_were_told() -> None:
    assert list(WRITERS) == ["vllm", "speculators", "automodel", "trtllm"]


@pytest.mark.parametrize("words", [["--to", "sglang"], []])
def test_an_unknown_dialect_is_misuse(tmp_path: Path, words: list[str]) -> None:
    assert convert("tiny", *words, "-o", tmp_path / "head") == 2


def test_a_head_without_its_mask_token_is_converted_with_it(tmp_path: Path) -> None:
    save_drafter(tmp_path / "ours")
    edit_config(tmp_path / "ours", mask_token_id=None)
    assert convert(tmp_path / "ours", "--to", "vllm", "-o", tmp_path / "head") == 4
    assert convert(tmp_path / "ours", "--to", "vllm", "-o", tmp_path / "head", "--mask-token-id", 7) == 0
    assert read_head(tmp_path / "head").config.mask_token_id == 7


def test_a_head_of_another_method_is_not_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_drafter(tmp_path / "ours")
    edit_config(tmp_path / "ours", architectures=["DFlashDraftModel"])
    assert convert(tmp_path / "ours", "--to", "vllm", "-o", tmp_path / "head") == 4
    assert "is a DFlash head" in capsys.readouterr().err
