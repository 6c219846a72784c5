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
