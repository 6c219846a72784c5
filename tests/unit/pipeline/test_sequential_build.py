"""A build with a plain EAGLE-3 head: as its user makes it, decodes with it and measures with it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peagle_trt.build_folder import read_manifest
from peagle_trt.cli.main import run
from peagle_trt.decode.session import generate, open_build
from tests.support.checkpoints import save_byte_tokenizer
from tests.support.models import save_drafter, save_target


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds of one target with a plain head (`sequential`) and a parallel one (`parallel`)."""
    folder = tmp_path_factory.mktemp("sequential-build")
    save_target(folder / "target")
    save_byte_tokenizer(folder / "target")
    save_drafter(folder / "plain-head", mask_token_id=None, num_hidden_layers=1, draft_vocab_size=120)
    save_drafter(folder / "parallel-head")
    assert run(["-q", *build_words(folder, "plain-head", "sequential")]) == 0
    assert run(["-q", *build_words(folder, "parallel-head", "parallel")]) == 0
    (folder / "prompts.jsonl").write_text('{"prompt": "hello"}\n{"prompt": "good-bye"}\n')
    return folder


def build_words(folder: Path, head: str, output: str, *more: str) -> list[str]:
    words = ["build", "--target", folder / "target", "--drafter", folder / head, "-o", folder / output, "-k", "3"]
    return [*map(str, words), "--max-batch-size", "2", "--max-sequence-length", "128", *more]


def document_of(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    run(["--json", *map(str, words)])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_the_manifest_says_how_the_head_drafts(folder: Path) -> None:
    assert read_manifest(folder / "sequential").drafter.method == "eagle3"
    assert read_manifest(folder / "parallel").drafter.method == "p-eagle"


def test_the_build_verifies_by_itself(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert document_of(capsys, "verify", folder / "sequential")["num_drafts_compared"] == 12


@pytest.mark.parametrize("draft_tokens", [1, 5])
@pytest.mark.parametrize("prompt_lookup", [False, True])
def test_greedy_answers_are_the_targets_alone(folder: Path, draft_tokens: int, prompt_lookup: bool) -> None:
    loaded = open_build(folder / "sequential", num_threads=1)
    texts = ("a", "A text of some length.", "Three of them for two slots")
    requests = [loaded.request(text, max_tokens=30) for text in texts]
    alone = generate(loaded, [replace(request, draft_tokens=0) for request in requests])
    asked = [replace(request, draft_tokens=draft_tokens, prompt_lookup=prompt_lookup) for request in requests]
    drafted = generate(loaded, asked)
    assert [answer.token_ids for answer in drafted] == [answer.token_ids for answer in alone]
    assert all(answer.metrics.num_drafter_passes == answer.metrics.num_draft_tokens > 0 for answer in drafted)


def test_bench_takes_the_method_of_the_build(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", folder / "sequential", "--prompts", folder / "prompts.jsonl", *SHORT, "-k", "2"]
    document = document_of(capsys, *words)
    assert [item["method"] for item in document["results"]] == ["none", "eagle3"]
    assert document["results"][1]["is_equal_to_baseline"] == 1.0
    assert document_of(capsys, *words, "--method", "eagle3")["method"] == "eagle3"


def test_bench_compares_with_an_eagle3_head_at_the_same_k(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", folder / "parallel", "--prompts", folder / "prompts.jsonl", *SHORT, "-k", "1,3"]
    document = document_of(capsys, *words, "--baseline", "eagle3", "--baseline-build", folder / "sequential")
    found = [(item["method"], item["draft_tokens"], item["speedup"] is None) for item in document["results"]]
    assert found == [("eagle3", 1, True), ("eagle3", 3, True), ("p-eagle", 1, False), ("p-eagle", 3, False)]
    assert all(item["is_equal_to_baseline"] in (None, 1.0) for item in document["results"])


def test_generate_takes_the_method_of_the_build(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", folder / "sequential", "hello", "--max-tokens", "12"]
    found = [document_of(capsys, *words, "--method", method) for method in ("eagle3", "none")]
    assert found[0]["text"] == found[1]["text"]
    assert [each["metrics"]["num_drafter_passes"] > 0 for each in found] == [True, False]


SHORT = ("--max-tokens", "16", "--no-chat", "--ignore-eos")
WRONG_USE = {
    "eagle3 on a parallel head": (["bench", "parallel", "--method", "eagle3"], "needs an EAGLE-3 head"),
    "p-eagle on a plain head": (["bench", "sequential", "--method", "p-eagle"], "needs a P-EAGLE head"),
    "the other method to generate": (["generate", "parallel", "x", "--method", "eagle3"], "needs an EAGLE-3 head"),
    "none with drafts": (["generate", "parallel", "x", "--method", "none", "-k", "2"], "drafts nothing"),
    "a baseline without a build": (["bench", "parallel", "--baseline", "eagle3"], "go together"),
    "a build without a baseline": (["bench", "parallel", "--baseline-build", "sequential"], "go together"),
    "two builds of one kind": (
        ["bench", "sequential", "--baseline", "eagle3", "--baseline-build", "sequential"],
        "so is what is compared",
    ),
    "a baseline of the other kind": (
        ["bench", "sequential", "--baseline", "eagle3", "--baseline-build", "parallel"],
        "needs an EAGLE-3 head",
    ),
    "a mask token for a plain head": (["mask"], "without any"),
    "a backend that runs no plain heads": (["rtx"], "runs no plain EAGLE-3 heads"),
}


@pytest.mark.parametrize("name", WRONG_USE)
def test_wrong_use_is_refused(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, message = WRONG_USE[name]
    builds = {each: str(folder / each) for each in ("parallel", "sequential")}
    special = {
        "mask": build_words(folder, "plain-head", "other", "--mask-token-id", "7"),
        "rtx": build_words(folder, "plain-head", "other", "--backend", "tensorrt-rtx", "--sm", "120"),
    }
    asked = special.get(words[0]) or [builds.get(word, word) for word in words]
    document = document_of(capsys, *asked)
    assert document["error"]["exit_code"] == 2
    assert message in document["error"]["message"]


def test_another_target_is_no_baseline(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_target(tmp_path / "target", seed=9)
    save_byte_tokenizer(tmp_path / "target")
    save_drafter(tmp_path / "plain-head", mask_token_id=None, num_hidden_layers=1)
    assert run(["-q", *build_words(tmp_path, "plain-head", "other")]) == 0
    capsys.readouterr()
    words = ["bench", folder / "parallel", "--baseline", "eagle3", "--baseline-build", tmp_path / "other"]
    assert "the target's weights are not the same" in document_of(capsys, *words)["error"]["message"]
