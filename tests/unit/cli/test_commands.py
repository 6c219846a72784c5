"""The commands on a small pair, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from peagle_trt.cli.main import run
from tests.support.checkpoints import edit_config, save_byte_tokenizer
from tests.support.models import save_drafter, save_target


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    save_target(folder / "target")
    save_byte_tokenizer(folder / "target")
    save_drafter(folder / "head")
    assert run(["-q", *build_words(folder, "build")]) == 0
    return folder


def build_words(folder: Path, output: str, *more: str) -> list[str]:
    words = ["build", "--target", folder / "target", "--drafter", folder / "head", "-o", folder / output]
    return [*map(str, words), "--max-batch-size", "2", "--max-sequence-length", "128", *more]


def document_of(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    code = run(["--json", *map(str, words)])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document["ok"] == (code == 0)
    return document


def test_build_reports_what_it_made(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = document_of(capsys, *build_words(folder, "another", "-k", "3"))
    assert document["path"] == str(folder / "another")
    assert document["is_complete"]
    assert (document["draft_tokens"], document["backend"], document["precision"]) == (3, "onnxruntime", "fp32")


def test_a_dry_run_shows_the_plan(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = document_of(capsys, *build_words(folder, "build", "--dry-run"))
    assert document["is_complete"]
    assert [step["name"] for step in document["steps"]] == ["read", "quantize", "graph", "engine", "verify", "assemble"]
    assert document["steps"][1]["bytes"] > 1_000_000


def test_an_early_stop_says_where_the_steps_wait(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = document_of(capsys, *build_words(folder, "partial", "--until", "quantize"))
    assert not document["is_complete"]
    assert Path(document["path"], "engine", "target.safetensors").exists()
    assert not (folder / "partial").exists()


def test_a_settings_file_gives_way_to_flags(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "build.toml"
    settings.write_text(
        f'target = "{folder}/target"\ndrafter = "{folder}/head"\ndraft-tokens = 2\nmax_batch_size = 1\n'
    )
    common = ["build", "--config", settings, "-o", tmp_path / "out", "--max-sequence-length", "64"]
    assert document_of(capsys, *common)["draft_tokens"] == 2
    document = document_of(capsys, *common, "-k", "4")
    assert (document["draft_tokens"], document["max_batch_size"]) == (4, 1)


SETTINGS = {
    "draft-token = 3": "unknown key `draft_token`",
    "draft_tokens = 99": "99 is not in the range",
    'draft_tokens = "many"': "'many' is not a valid integer range",
    "draft_tokens = ": "cannot read",
}


@pytest.mark.parametrize(("text", "message"), SETTINGS.items())
def test_a_settings_file_that_means_nothing_is_refused(
    tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "build.toml").write_text(text)
    document = document_of(capsys, "build", "--target", "tiny", "--config", tmp_path / "build.toml")
    assert document["error"]["exit_code"] == 2
    assert message in document["error"]["message"]


def test_an_unknown_key_is_met_with_a_suggestion(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "build.toml").write_text("draft-token = 3")
    document = document_of(capsys, "build", "--target", "tiny", "--config", tmp_path / "build.toml")
    assert document["error"]["hint"] == "did you mean `draft_tokens`?"


def test_a_target_of_one_s_own_needs_a_drafter(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = document_of(capsys, "build", "--target", folder / "target")
    assert document["error"]["message"] == "a target of your own needs a drafter"


def test_inspect_shows_a_target(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = document_of(capsys, "inspect", folder / "target")
    assert document["kind"] == "target"
    assert document["config"]["num_layers"] == 6
    assert {"name", "stored_name", "type", "shape"} == document["tensors"][0].keys()


def test_inspect_judges_a_pair(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert document_of(capsys, "inspect", folder / "head", "--target", folder / "target")["pairing"] == "fits"
    save_drafter(tmp_path / "other")
    edit_config(tmp_path / "other", mask_token_id=4000)
    document = document_of(capsys, "inspect", tmp_path / "other", "--target", folder / "target")
    assert "mask token 4000" in document["pairing"]


def test_inspect_prints_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(folder / "head"), "--tensors"]) == 0
    text = capsys.readouterr().out
    assert "mask_token_id" in text
    assert "layers.0.hidden_norm.weight" in text


def test_verify_compares_a_build(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = document_of(capsys, "verify", folder / "build")
    assert document["max_logit_error"] < document["logit_tolerance"]


def test_generate_streams_the_same_words_it_reports(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", folder / "build", "hello", "--max-tokens", "12"]
    document = document_of(capsys, *words)
    assert document["metrics"]["num_output_tokens"] == 12
    assert run([str(word) for word in words]) == 0
    assert capsys.readouterr().out == document["text"] + "\n"


def test_generate_with_and_without_drafts_agrees(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", folder / "build", "hello", "--max-tokens", "12"]
    assert document_of(capsys, *words, "-k", "0")["text"] == document_of(capsys, *words, "-k", "6")["text"]


def test_doctor_names_packages_and_problems(capsys: pytest.CaptureFixture[str]) -> None:
    document = document_of(capsys, "doctor")
    assert document["machine"]["packages"].keys() >= {"numpy", "onnxruntime"}
    assert document["machine"]["num_usable_cores"] >= 1


def test_targets_lists_the_catalog(capsys: pytest.CaptureFixture[str]) -> None:
    names = {target["name"] for target in document_of(capsys, "targets")["targets"]}
    assert {"tiny", "smollm2-135m"} <= names
