"""`peagle-trt bench --url .../v1` through the door counts what the build in this process answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peagle_trt.cli.main import run

from .conftest import Door

WORDS = ["--prompts", "gsm8k", "--num-prompts", "3", "--max-tokens", "24", "--no-chat", "-k", "4"]


def test_the_door_is_measured(door: Door, tiny_build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = []
    for source in (["--url", f"{door.address}/v1"], [str(tiny_build)]):
        assert run(["--json", "bench", *source, *WORDS]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    remote, local = documents
    assert (remote["num_output_tokens"], remote["is_equal_to_baseline"]) == (local["num_output_tokens"], 1.0)
    assert remote["speedup"] > 0
    # OpenAI's API says nothing of drafts.
    assert (remote["acceptance_length"], remote["acceptance_by_position"]) == (None, [])
