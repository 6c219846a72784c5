"""`peagle-trt bench --url` against the server gives the acceptance that the build in this process has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peagle_trt.cli.main import run

from .conftest import Served

WORDS = ["--prompts", "gsm8k", "--num-prompts", "3", "--max-tokens", "32", "--no-chat"]


def test_a_served_build_is_measured_like_one_in_process(
    served: Served, tiny_build: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = []
    for source in (["--url", f"http://127.0.0.1:{served.server.ports.http}"], [str(tiny_build)]):
        assert run(["--json", "bench", *source, *WORDS]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    remote, local = documents
    for key in ("acceptance_length", "acceptance_by_position", "num_output_tokens", "is_equal_to_baseline"):
        assert remote[key] == local[key]
