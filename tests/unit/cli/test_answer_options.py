"""What `generate` tells about answers, and how it is told to end them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from peagle_trt.cli.main import run
from tests.support.checkpoints import save_byte_tokenizer
from tests.support.models import save_drafter, save_target


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("generate")
    save_target(folder / "target")
    save_byte_tokenizer(folder / "target")
    save_drafter(folder / "head")
    build = str(folder / "build")
    made_of = ["--target", str(folder / "target"), "--drafter", str(folder / "head")]
    assert run(["-q", "build", *made_of, "-o", build, "--max-sequence-length", "128"]) == 0
    return ["generate", build, "hello", "--max-tokens", "12"]


def document(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    run(["--json", "-q", *map(str, words)])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_every_token_has_its_log_probability(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    entries = document(capsys, *words, "--log-probs", 2)["log_probs"]
    assert len(entries) == 12
    for entry in entries:
        # Greedy: the token is the likeliest.
        assert entry["top"][0]["token_id"] == entry["token_id"]
        assert entry["log_prob"] == entry["top"][0]["log_prob"] >= entry["top"][1]["log_prob"]


def test_answers_have_the_seeds_that_follow(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    sampled = [*words, "--temperature", 2]
    several = document(capsys, *sampled, "--seed", 7, "--num-answers", 2)["answers"]
    assert [answer["text"] for answer in several] == [
        document(capsys, *sampled, "--seed", seed)["text"] for seed in (7, 8)
    ]


def test_a_grammar_is_followed_from_the_command_line_and_from_a_file(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "choices").write_text('["yes", "no"]')
    for text in ('["yes", "no"]', f"@{tmp_path / 'choices'}"):
        answer = document(capsys, *words, "--guide", "choice", text)
        assert answer["text"] in ("yes", "no")
        assert answer["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("guide", "message"),
    [(("regex", "[a"), "`--guide` is no regex"), (("json_schema", "@nowhere.json"), "cannot read the grammar")],
)
def test_a_grammar_that_is_none_is_wrong_use(
    words: list[str], guide: tuple[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = document(capsys, *words, "--guide", *guide)["error"]
    assert error["exit_code"] == 2
    assert message in error["message"]


def test_a_stop_token_ends_the_answer(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    ids = [entry["token_id"] for entry in document(capsys, *words, "--log-probs", 0)["log_probs"]]
    cut = document(capsys, *words, "--log-probs", 0, "--stop-token-id", ids[4])
    assert [entry["token_id"] for entry in cut["log_probs"]] == ids[: ids.index(ids[4])]
    assert cut["finish_reason"] == "stop"


@pytest.mark.parametrize("temperature", [0, 2])
def test_prompt_lookup_changes_no_answer(
    words: list[str], temperature: float, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*words, "--temperature", temperature, "--seed", 3]
    found = document(capsys, *asked, "--prompt-lookup")
    assert found["text"] == document(capsys, *asked)["text"]
    assert found["metrics"]["num_looked_up_tokens"] <= found["metrics"]["num_accepted_tokens"]


@pytest.mark.parametrize(
    ("beside", "message"),
    [
        (["-k", 0], "none are made"),
        (["--method", "none"], "none are made"),
        (["--guide", "regex", "a+"], "follow a grammar"),
    ],
)
def test_prompt_lookup_beside_what_leaves_it_nothing_to_do_is_wrong_use(
    words: list[str], beside: list[object], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = document(capsys, *words, "--prompt-lookup", *beside)["error"]
    assert error["exit_code"] == 2
    assert message in error["message"]
