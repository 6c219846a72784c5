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


def test_prompt_lookup_is_measured_on_a_served_build(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    before = served.settled_metrics().get("peagle_looked_up_tokens_total", 0)
    documents = []
    for url in (f"http://127.0.0.1:{served.server.ports.http}", f"grpc://127.0.0.1:{served.server.ports.grpc}"):
        for more in ([], ["--prompt-lookup"]):
            assert run(["--json", "bench", "--url", url, *WORDS, "--max-tokens", "64", *more]) == 0
            documents.append(json.loads(capsys.readouterr().out))
    assert [document["settings"]["prompt_lookup"] for document in documents] == [False, True] * 2
    assert [document["is_equal_to_baseline"] for document in documents] == [1.0] * 4
    assert documents[0]["acceptance_length"] == documents[2]["acceptance_length"]
    assert served.settled_metrics()["peagle_looked_up_tokens_total"] > before


def test_the_server_tells_what_its_head_is(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{served.server.ports.http}"
    assert run(["bench", "--url", url, *WORDS, "--method", "eagle3"]) == 2
    assert "the server's head is `p-eagle`" in capsys.readouterr().err


def test_grpc_measures_what_http_does(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    ports = served.server.ports
    documents = []
    for url in (f"http://127.0.0.1:{ports.http}", f"grpc://127.0.0.1:{ports.grpc}"):
        assert run(["--json", "bench", "--url", url, *WORDS, "--concurrency", "2"]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    for key in ("method", "acceptance_length", "acceptance_by_position", "num_output_tokens", "is_equal_to_baseline"):
        assert documents[0][key] == documents[1][key]
    assert documents[1]["energy_absent"] and documents[1]["inter_token_ms"]
