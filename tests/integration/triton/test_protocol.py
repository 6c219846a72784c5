"""What Triton's own protocol carries beside the tensors, over each of its doors, with a real server."""

from __future__ import annotations

import http.client
import json
import queue
from typing import Any

import pytest

from peagle_trt.deploy.client import grpc_inputs, grpc_outputs

from .conftest import Served

PROMPT = "Question: Tom has 3 apples and buys 4 more. How many apples does he have?\nAnswer:"
ASK = {"text_input": PROMPT, "max_tokens": 8}
LONG = {"text_input": PROMPT, "max_tokens": 900, "end_id": -1, "draft_tokens": 0}
MODELS = pytest.mark.parametrize("model", ["peagle", "ensemble", "tensorrt_llm_bls"])


def over_grpc(served: Served, model: str, payload: dict[str, Any], **beside: Any) -> tuple[Any, Any]:
    """The first response of one request over a gRPC stream, or its error."""
    import tritonclient.grpc as grpc_client

    results: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    client = grpc_client.InferenceServerClient(f"127.0.0.1:{served.server.ports.grpc}")
    client.start_stream(callback=lambda result, error: results.put((result, error)))
    try:
        client.async_stream_infer(model, grpc_inputs(payload), enable_empty_final_response=True, **beside)
        result, error = results.get(timeout=60)
        return (None, error) if error is not None else (grpc_outputs(result), None)
    finally:
        client.stop_stream()
        client.close()


def post(served: Served, path: str, payload: dict[str, Any]) -> dict[str, Any]:
    """What the server answers over HTTP, errors included."""
    connection = http.client.HTTPConnection("127.0.0.1", served.server.ports.http, timeout=60)
    try:
        connection.request("POST", f"/v2/models/{path}", json.dumps(payload))
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    return answer


@MODELS
@pytest.mark.parametrize(
    "beside",
    [
        {"sequence_id": 7},
        {"sequence_id": "mine"},
        {"sequence_id": 7, "sequence_start": True},
        {"sequence_id": 7, "sequence_end": True},
    ],
)
def test_a_sequence_is_refused_by_name_over_grpc(served: Served, model: str, beside: dict[str, Any]) -> None:
    _, error = over_grpc(served, model, ASK, **beside)
    assert "`sequence_id` is not supported: every request stands alone" in str(error)


@MODELS
def test_a_sequence_is_refused_by_name_over_generate(served: Served, model: str) -> None:
    assert "`sequence_id` is not supported" in post(served, f"{model}/generate", ASK | {"sequence_id": 7})["error"]


@MODELS
def test_a_time_limit_holds_over_both_doors(served: Served, model: str) -> None:
    answer, error = over_grpc(served, model, LONG, timeout=50_000)
    assert (error, answer["finish_reason"]) == (None, "deadline")
    assert post(served, f"{model}/generate", LONG | {"timeout": 50_000})["finish_reason"] == "deadline"


@MODELS
def test_the_protocols_own_priority_changes_nothing(served: Served, model: str) -> None:
    plain, _ = over_grpc(served, model, ASK)
    urgent, error = over_grpc(served, model, ASK, priority=1)
    assert (error, urgent["text_output"]) == (None, plain["text_output"])


@MODELS
def test_errors_say_their_code_to_those_who_ask_over_both_doors(served: Served, model: str) -> None:
    bad = ASK | {"top_p": 2.0}
    _, error = over_grpc(served, model, bad, parameters={"peagle_error_codes": True})
    assert "INVALID_ARG: `top_p`" in str(error)
    assert "INVALID_ARG: `top_p`" in post(served, f"{model}/generate", bad | {"peagle_error_codes": True})["error"]


@MODELS
def test_a_parameter_that_nothing_reads_is_refused_by_name_over_grpc(served: Served, model: str) -> None:
    _, error = over_grpc(served, model, ASK, parameters={"temprature": 0.5})
    assert "`temprature` is no input of this model" in str(error)


@MODELS
def test_an_input_among_the_parameters_is_read_over_generate_and_refused_over_grpc(served: Served, model: str) -> None:
    sampled = {"temperature": 1.5, "random_seed": 5, "min_length": 8}
    beside = post(served, f"{model}/generate", ASK | sampled)["text_output"]
    assert post(served, f"{model}/generate", ASK | {"parameters": sampled})["text_output"] == beside
    assert post(served, f"{model}/generate", ASK)["text_output"] != beside
    _, error = over_grpc(served, model, ASK, parameters={"min_length": 3})
    assert "`min_length` came as a parameter; send it beside the prompt" in str(error)


def test_a_sequence_is_refused_by_name_over_infer(served: Served) -> None:
    # The one model that has no stream, and so is reached by this door.
    body = {
        "inputs": [
            {"name": "QUERY", "shape": [1, 1], "datatype": "BYTES", "data": [PROMPT]},
            {"name": "REQUEST_OUTPUT_LEN", "shape": [1, 1], "datatype": "INT32", "data": [4]},
        ]
    }
    assert "outputs" in post(served, "preprocessing/infer", body)
    refused = post(served, "preprocessing/infer", body | {"parameters": {"sequence_id": 7}})
    assert "`sequence_id` is not supported" in refused["error"]
