"""`peagle-trt bench` on the tiny build: a document with every promised key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peagle_trt.cli.main import run


def test_the_document_has_what_scripts_rely_on(tiny_build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--json", "bench", str(tiny_build), "--prompts", "gsm8k", "--num-prompts", "4", "--max-tokens", "24"]
    assert run([*words, "-k", "2,4", "--concurrency", "1,3", "--no-chat"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is True
    for key in ("acceptance_length", "acceptance_by_position", "tokens_per_second", "speedup", "machine"):
        assert document[key]
    assert [(item["method"], item["draft_tokens"], item["concurrency"]) for item in document["results"]] == [
        ("none", 0, 1),
        ("p-eagle", 2, 1),
        ("p-eagle", 4, 1),
        ("none", 0, 3),
        ("p-eagle", 2, 3),
        ("p-eagle", 4, 3),
    ]
    assert all(item["is_equal_to_baseline"] in (None, 1.0) for item in document["results"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give a BUILD or a --url"),
        (["--url", "nowhere"], "names no host and port"),
        (["/nonexistent"], "`/nonexistent`"),
    ],
)
def test_wrong_use_is_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", *words]) == 2
    assert message in capsys.readouterr().err


RUN = ["--prompts", "gsm8k,humaneval", "--num-prompts", "1", "--max-tokens", "8", "--no-chat", "--repeats", "2"]


def test_a_run_goes_on_where_it_stopped(tiny_build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", str(tiny_build), *RUN, "-o", str(tmp_path / "run")]
    assert run(words) == 0
    whole = (tmp_path / "run" / "cells.jsonl").read_text().splitlines()
    assert len(whole) == 8
    # As a kill in the middle of the third round leaves it.
    (tmp_path / "run" / "cells.jsonl").write_text("\n".join(whole[:5]) + "\n" + whole[5][:40])
    capsys.readouterr()
    assert run(["--json", *words]) == 0
    printed = capsys.readouterr()
    assert "holds 2 finished rounds" in printed.err
    resumed = (tmp_path / "run" / "cells.jsonl").read_text().splitlines()
    assert resumed[:4] == whole[:4] and len(resumed) == 8
    document = json.loads(printed.out)
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == document
    assert [item["prompts"] for item in document["results"]] == ["gsm8k", "gsm8k", "humaneval", "humaneval"]
    assert [item["num_rounds"] for item in document["results"]] == [2, 2, 2, 2]


def test_a_run_goes_on_with_the_same_build_in_another_place(
    tiny_build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--prompts", "gsm8k", "--num-prompts", "1", "--max-tokens", "4", "--no-chat", "-o", str(tmp_path / "run")]
    assert run(["bench", str(tiny_build), *words]) == 0
    moved = tmp_path / "moved"
    moved.symlink_to(tiny_build)
    assert run(["bench", str(moved), *words]) == 0
    assert "holds 1 finished rounds" in capsys.readouterr().err


def test_a_run_with_other_settings_is_refused_by_name(
    tiny_build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", str(tiny_build), *RUN, "-o", str(tmp_path / "run")]
    assert run(words) == 0
    assert run([*words, "--max-tokens", "9"]) == 2
    assert "`max_tokens` = `8`, now it is `9`" in capsys.readouterr().err


def test_what_a_user_sees_is_in_the_document(tiny_build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--json", "bench", str(tiny_build), "--prompts", "gsm8k", "--num-prompts", "2", "--max-tokens", "24"]
    assert run([*words, "--no-chat", "--temperature", "0.8", "--seed", "3", "--ignore-eos"]) == 0
    document = json.loads(capsys.readouterr().out)
    for key in ("first_token_ms", "inter_token_ms", "tokens_per_second_per_user", "speedup_cpu", "sources"):
        assert document[key], key
    assert document["acceptance_by_context"][0]["num_steps"] > 0
    # Sampled answers differ by right.
    assert document["is_equal_to_baseline"] is None
    assert document["energy_joules_per_token"] or document["energy_absent"]
    assert document["num_output_tokens"] == 2 * 24


def test_more_requests_than_the_build_takes_are_refused(tiny_build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", str(tiny_build), "--concurrency", "1,1000"]) == 2
    assert "1000 requests in flight" in capsys.readouterr().err


def test_what_is_named_twice_is_measured_once(tiny_build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--num-prompts", "1", "--max-tokens", "4", "-k", "auto,2,auto,2", "--concurrency", "1,1", "--no-chat"]
    assert run(["--json", "bench", str(tiny_build), *words]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert [(item["method"], item["is_adaptive"], item["num_rounds"]) for item in results] == [
        ("none", False, 1),
        ("p-eagle", True, 1),
        ("p-eagle", False, 1),
    ]


@pytest.mark.parametrize("words", [["-o", "run"], ["--repeats", "3"], ["--ignore-eos"], ["--concurrency", "2"]])
def test_options_that_a_comparison_would_ignore_are_refused(
    tiny_build: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert run(["bench", str(tiny_build), "--against", str(tiny_build), *words]) == 2
    assert "says nothing beside --against" in capsys.readouterr().err


def test_a_prompt_that_does_not_fit_is_named_before_anything_is_measured(
    tiny_build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "short"}\n' + json.dumps({"prompt": "long " * 5000}) + "\n")
    assert run(["bench", str(tiny_build), "--prompts", str(path), "--max-tokens", "4"]) == 2
    err = capsys.readouterr().err
    assert f"prompt 2 of `{path}`: the prompt has" in err
    assert "round 1" not in err
