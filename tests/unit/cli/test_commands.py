"""The commands on a small pair, as a user types them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from peagle_trt.cli.generate import PENALTY, SEED, TEMPERATURE, TOP_K, TOP_P
from peagle_trt.cli.main import run
from peagle_trt.decode.request import GenerationChunk, GenerationRequest, SamplingSettings
from peagle_trt.decode.sampling import check_sampling
from peagle_trt.decode.session import LoadedBuild, stream
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
    assert "mask token does not fit" in document["pairing"]


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


def test_generate_chooses_k_step_by_step_where_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[GenerationRequest] = []

    def noted(loaded: LoadedBuild, request: GenerationRequest) -> Iterator[GenerationChunk]:
        asked.append(request)
        yield from stream(loaded, request)

    monkeypatch.setattr("peagle_trt.cli.generate.stream", noted)
    words = ["generate", folder / "build", "hello", "--max-tokens", "12"]
    chosen, plain = document_of(capsys, *words, "-k", "auto"), document_of(capsys, *words, "-k", "0")
    assert [request.draft_tokens for request in asked] == ["auto", 0]
    assert chosen["text"] == plain["text"]
    assert document_of(capsys, *words, "-k", "auto", "--method", "none")["error"]["exit_code"] == 2


@pytest.mark.parametrize(("command", "metavar"), [("generate", "N|auto"), ("bench", "N|auto,...")])
def test_help_shows_that_k_may_be_chosen(command: str, metavar: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"-k, --draft-tokens {metavar} K or auto" in text


SAMPLING = {
    "--temperature": ("nan", "inf", "1e300", "-1", "100.5"),
    "--top-k": ("-1", "2147483648", "1.5"),
    "--top-p": ("0", "1.5", "nan"),
    "--repetition-penalty": ("0", "1e9", "nan", "-inf"),
    "--seed": ("-1", "x"),
    "--max-tokens": ("0",),
    "-k": ("-1", "17", "AUTO", "2,3"),
    "--stop": ("",),
    "--threads": ("0", "999999"),
    "--num-answers": ("0", "17"),
    "--min-tokens": ("-1",),
    "--max-seconds": ("0", "x"),
    "--log-probs": ("-1", "21"),
    "--stop-token-id": ("-1",),
}


@pytest.mark.parametrize(("option", "value"), [(option, value) for option in SAMPLING for value in SAMPLING[option]])
def test_a_value_that_generate_cannot_honour_is_wrong_use(
    folder: Path, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document = document_of(capsys, "generate", folder / "build", "hello", option, value)
    assert document["error"]["exit_code"] == 2
    assert option in document["error"]["message"]


def test_a_prompt_that_is_too_long_is_wrong_use(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = document_of(capsys, "generate", folder / "build", "hello " * 100)["error"]
    assert error["exit_code"] == 2
    assert "at most 127 fit" in error["message"]


LIMITS = [
    *({"temperature": value} for value in (TEMPERATURE.min, TEMPERATURE.max)),
    *({"top_k": value} for value in (TOP_K.min, TOP_K.max)),
    {"top_p": TOP_P.max},
    *({"repetition_penalty": value} for value in (PENALTY.min, PENALTY.max)),
    {"seed": SEED.min},
]


@pytest.mark.parametrize("settings", LIMITS)
def test_the_decode_loop_takes_what_help_promises(settings: dict[str, Any]) -> None:
    check_sampling(SamplingSettings(**settings))


def test_generate_passes_the_sampling_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", folder / "build", "hello", "--max-tokens", "12"]
    greedy = document_of(capsys, *words)["text"]
    sampled = [*words, "--temperature", "100", "--seed", "3"]
    assert document_of(capsys, *sampled)["text"] != greedy
    assert document_of(capsys, *sampled, "--top-k", "1")["text"] == greedy
    assert document_of(capsys, *sampled, "--top-p", "1e-9")["text"] == greedy
    assert document_of(capsys, *words, "--repetition-penalty", "1000")["text"] != greedy


def test_generate_stops_at_any_of_several_texts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", folder / "build", "hello", "--max-tokens", "12"]
    whole = document_of(capsys, *words)["text"]
    stopped = document_of(capsys, *words, "--stop", "not in it", "--stop", whole[2])
    assert (stopped["text"], stopped["finish_reason"]) == (whole[: whole.find(whole[2])], "stop")


def test_doctor_names_packages_and_problems(capsys: pytest.CaptureFixture[str]) -> None:
    document = document_of(capsys, "doctor")
    assert document["machine"]["packages"].keys() >= {"numpy", "onnxruntime"}
    assert document["machine"]["num_usable_cores"] >= 1


def test_targets_lists_the_catalog(capsys: pytest.CaptureFixture[str]) -> None:
    names = {target["name"] for target in document_of(capsys, "targets")["targets"]}
    assert {"tiny", "smollm2-135m"} <= names


def test_prompt_lookup_is_not_measured_where_nothing_is_drafted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", str(tmp_path), "--method", "none", "--prompt-lookup"]) == 2
    assert "none are made" in capsys.readouterr().err
