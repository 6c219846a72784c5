"""What users of other served models reported, tried on ours with a real server; docs/user_reports.md has the list."""

from __future__ import annotations

import http.client
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from peagle_trt.deploy.client import GrpcStream, HttpClient, grpc_inputs
from peagle_trt.deploy.ports import choose_ports
from peagle_trt.deploy.server import TritonServer
from peagle_trt.errors import RequestError

from .conftest import Served
from .doors import over_grpc, post

PROMPT = "Question: Tom has 3 apples and buys 4 more. How many apples does he have?\nAnswer:"
ASK = {"text_input": PROMPT, "max_tokens": 24}
LONG = {"text_input": PROMPT, "max_tokens": 900, "end_id": -1, "draft_tokens": 0, "stream": True}
MODELS = pytest.mark.parametrize("model", ["peagle", "ensemble", "tensorrt_llm_bls"])
STOP_SECONDS = 60.0
"""Longer than a stop may take on a busy machine; the server's own exit would wait for the stream for ever."""


@MODELS
def test_streams_one_after_the_other_come_whole_and_in_pieces(served: Served, model: str) -> None:
    whole = served.http.generate(ASK, model=model)["text_output"]
    for _ in range(3):
        with served.grpc({**ASK, "stream": True}, model) as stream:
            pieces = [piece.get("text_output") or "" for piece in stream]
        assert sum(map(bool, pieces)) > 1
        assert "".join(pieces) == whole


@MODELS
def test_infer_over_http_says_that_the_model_streams(served: Served, model: str) -> None:
    inputs = [{"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": [PROMPT]}]
    status, body = post(served, f"{model}/infer", {"inputs": inputs})
    assert status == http.client.NOT_IMPLEMENTED
    assert "decoupled" in body["error"]


@MODELS
def test_generate_says_that_it_carries_one_piece_alone(served: Served, model: str) -> None:
    _, body = post(served, f"{model}/generate", {**ASK, "stream": True})
    assert "exactly 1 response" in body["error"]
    status, body = post(served, f"{model}/generate", {**ASK, "stream": False})
    assert (status, body["finish_reason"]) == (http.client.OK, "length")


@MODELS
def test_an_integer_of_another_type_is_named(served: Served, model: str) -> None:
    import tritonclient.grpc as grpc_client

    limit = grpc_client.InferInput("max_tokens", [1, 1], "UINT32")
    limit.set_data_from_numpy(np.uint32([[4]]))
    _, error = over_grpc(served, model, [*grpc_inputs({"text_input": PROMPT}), limit])
    assert "`max_tokens`" in str(error) or "'max_tokens'" in str(error), error
    assert "INT32" in str(error)


@MODELS
def test_a_text_of_two_megabytes_is_answered_with_a_reason_and_the_next_is_served(served: Served, model: str) -> None:
    with pytest.raises(RequestError, match="the prompt has"):
        served.http.generate({**ASK, "text_input": "word " * 400_000}, model=model)
    assert served.http.generate(ASK, model=model)["finish_reason"] == "length"


@pytest.mark.slow
def test_an_open_stream_does_not_keep_a_server_from_stopping(repository: Path, tmp_path: Path) -> None:
    shutil.copytree(repository, tmp_path / "models", symlinks=False)
    with TritonServer(tmp_path / "models", choose_ports(), log_path=tmp_path / "log") as server:
        HttpClient(server.ports.http).generate(ASK)
        stream = GrpcStream(server.ports.grpc, LONG)
        next(iter(stream))
        began = time.monotonic()
    assert time.monotonic() - began < STOP_SECONDS
    stream.cancel()
