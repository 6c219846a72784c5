"""`inspect` on a small pair: what it shows, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from peagle_trt.cli.main import run
from tests.support.checkpoints import edit_config
from tests.support.models import save_drafter, save_target


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inspect")
    save_target(folder / "target")
    save_drafter(folder / "head")
    save_drafter(folder / "other")
    edit_config(folder / "other", mask_token_id=4000)
    return folder


def inspect(*words: object) -> int:
    return run(["inspect", *map(str, words)])


def inspect_json(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any]]:
    code = run(["--json", "inspect", *map(str, words)])
    return code, json.loads(capsys.readouterr().out)


def test_a_head_that_fits_ends_well(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = inspect_json(capsys, folder / "head", "--target", folder / "target")
    assert (code, document["ok"], document["fits"]) == (0, True, True)
    assert inspect(folder / "head", "--target", folder / "target") == 0
    assert capsys.readouterr().out.endswith("\nfits this target\n")


def test_a_head_that_does_not_fit_is_shown_and_rejected(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = inspect_json(capsys, folder / "other", "--target", folder / "target")
    assert (code, document["ok"], document["fits"], document["error"]["exit_code"]) == (4, False, False, 4)
    assert document["config"]["mask_token_id"] == 4000
    assert "mask token 4000" in document["pairing"]
    assert document["error"]["message"] == document["pairing"]


def test_the_words_for_a_misfit_are_plain(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect(folder / "other", "--target", folder / "target") == 4
    assert capsys.readouterr().out.splitlines()[-1].startswith("does not fit this target: the drafter's mask token")


def test_settings_are_written_for_people(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_target(tmp_path)
    edit_config(tmp_path, rope_parameters={"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0})
    assert inspect(tmp_path, "--tensors") == 0
    text = capsys.readouterr().out
    assert not set("{}()[]") & set(text)
    for words in ("theta 500000, linear: factor 2\n", "is_tied                no\n", "64 x 96"):
        assert words in text


def test_a_target_is_not_judged(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = inspect_json(capsys, folder / "target", "--target", folder / "target")
    assert code == 2
    assert "is a target" in document["error"]["message"]


@pytest.mark.parametrize("words", [["inspect", ""], ["build", "--target", ""], ["build", "--target", "a\0b"]])
def test_a_name_that_names_nothing_is_misuse(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    assert "it is empty" in (error := capsys.readouterr().err) or "NUL character" in error


def test_a_length_that_nobody_gave_is_not_blamed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_target(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    edit_config(tmp_path, max_position_embeddings=8)
    assert run(["build", "--target", str(tmp_path), "--drafter", str(folder / "head"), "--dry-run"]) == 4
    assert "was made for 8 token(s)" in capsys.readouterr().err


def test_experts_are_shown_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_target(tmp_path, "Qwen3MoeForCausalLM", num_hidden_layers=1)
    assert inspect(tmp_path) == 0
    assert "  experts                16 of width 32, 4 a token\n" in capsys.readouterr().out
