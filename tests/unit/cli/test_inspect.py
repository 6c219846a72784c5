"""`inspect` on a small pair: what it shows, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peagle_trt.cli.main import run
from tests.support.checkpoints import edit_config, edit_tensors, save_byte_tokenizer
from tests.support.models import VOCABULARY, save_drafter, save_target


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
    assert document["pairing"].endswith("found 4000")
    refused = [finding for finding in document["findings"] if finding["level"] == "refused"]
    assert [finding["what"] for finding in refused] == ["mask token"]
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


def test_a_head_alone_is_looked_at_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = inspect_json(capsys, folder / "head")
    assert (code, "fits" in document) == (0, False)
    assert document["taken_from_target"] == ["embed_tokens", "lm_head"]
    assert [finding["what"] for finding in document["findings"]] == [
        "vocabulary map `d2t`",
        "numbering of auxiliary layers",
        "`mask_hidden`",
    ]


def test_every_tensor_is_listed_with_where_it_goes(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_drafter(tmp_path)
    edit_tensors(tmp_path, t2d=np.ones(VOCABULARY, bool))
    assert inspect(tmp_path, "--tensors") == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(
        line.split() == ["layers.0.q_proj", "F32", "64", "x", "128", "layers.0.self_attn.q_proj.weight"]
        for line in lines
    )
    assert any(line.endswith("t2d: the inverse of d2t; only training reads it") for line in lines)


def test_sizes_are_those_on_disk(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, document = inspect_json(capsys, folder / "head")
    # fc, mask_hidden and the two norms outside the layers, in float32.
    assert document["size_bytes_by_part"]["fusion and norms"] == 4 * (64 * 192 + 192 + 64)


def test_a_mask_token_may_be_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_drafter(tmp_path)
    edit_config(tmp_path, mask_token_id=None)
    assert inspect(tmp_path) == 4
    assert "--mask-token-id" in capsys.readouterr().err
    code, document = inspect_json(capsys, tmp_path, "--mask-token-id", 7)
    assert (code, document["config"]["mask_token_id"]) == (0, 7)


def test_a_head_of_another_method_is_no_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_drafter(tmp_path)
    edit_config(tmp_path, medusa_num_heads=4)
    assert inspect(tmp_path) == 4
    assert "is a Medusa head" in capsys.readouterr().err


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


def test_a_build_takes_the_mask_token_too(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_target(tmp_path / "target")
    save_byte_tokenizer(tmp_path / "target")
    save_drafter(tmp_path / "head")
    edit_config(tmp_path / "head", mask_token_id=None)
    words = ["build", "--target", str(tmp_path / "target"), "--drafter", str(tmp_path / "head"), "--dry-run"]
    assert run(words) == 4
    assert run([*words, "--mask-token-id", "7", "-o", str(tmp_path / "build")]) == 0


def test_a_plain_eagle_3_head_is_shown(folder: Path, tmp_path: Path) -> None:
    save_drafter(tmp_path, mask_token_id=None)
    assert inspect(tmp_path, "--target", folder / "target") == 0


def test_a_build_is_no_checkpoint_and_verify_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    assert inspect(tmp_path) == 2
    assert "is a build, and `inspect` shows checkpoints" in (said := capsys.readouterr().err)
    assert "peagle-trt verify BUILD" in said
