"""What Triton's own protocol carries beside the tensors, over each of its doors, with a real server."""

from __future__ import annotations

from typing import Any

import pytest

from peagle_trt.deploy.client import grpc_inputs

from .conftest import Served
from .doors import over_grpc, post

PROMPT = "Question: Tom has 3 apples and buys 4 more. How many apples does he have?\nAnswer:"
ASK = {"text_input": PROMPT, "max_tokens": 8}
LONG = {"text_input": PROMPT, "max_tokens": 900, "end_id": -1, "draft_tokens": 0}
MODELS = pytest.mark.parametrize("model", ["peagle", "ensemble", "tensorrt_llm_bls"])


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
    _, error = over_grpc(served, model, grpc_inputs(ASK), **beside)
    assert "`sequence_id` is not supported: every request stands alone" in str(error)


@MODELS
def test_a_sequence_is_refused_by_name_over_generate(served: Served, model: str) -> None:
    assert "`sequence_id` is not supported" in post(served, f"{model}/generate", ASK | {"sequence_id": 7})[1]["error"]


@MODELS
def test_a_time_limit_holds_over_both_doors(served: Served, model: str) -> None:
    answer, error = over_grpc(served, model, grpc_inputs(LONG), timeout=50_000)
    assert (error, answer["finish_reason"]) == (None, "deadline")
    assert post(served, f"{model}/generate", LONG | {"timeout": 50_000})[1]["finish_reason"] == "deadline"


@MODELS
def test_the_protocols_own_priority_changes_nothing(served: Served, model: str) -> None:
    plain, _ = over_grpc(served, model, grpc_inputs(ASK))
    urgent, error = over_grpc(served, model, grpc_inputs(ASK), priority=1)
    assert (error, urgent["text_output"]) == (None, plain["text_output"])


@MODELS
def test_errors_say_their_code_to_those_who_ask_over_both_doors(served: Served, model: str) -> None:
    bad = ASK | {"top_p": 2.0}
    _, error = over_grpc(served, model, grpc_inputs(bad), parameters={"peagle_error_codes": True})
    assert "INVALID_ARG: `top_p`" in str(error)
    assert "INVALID_ARG: `top_p`" in post(served, f"{model}/generate", bad | {"peagle_error_codes": True})[1]["error"]


@MODELS
def test_a_parameter_that_nothing_reads_is_refused_by_name_over_grpc(served: Served, model: str) -> None:
    _, error = over_grpc(served, model, grpc_inputs(ASK), parameters={"temprature": 0.5})
    assert "`temprature` is no input of this model" in str(error)


@MODELS
def test_an_input_among_the_parameters_is_read_over_generate_and_refused_over_grpc(served: Served, model: str) -> None:
    sampled = {"temperature": 1.5, "random_seed": 5, "min_length": 8}
    beside = post(served, f"{model}/generate", ASK | sampled)[1]["text_output"]
    assert post(served, f"{model}/generate", ASK | {"parameters": sampled})[1]["text_output"] == beside
    assert post(served, f"{model}/generate", ASK)[1]["text_output"] != beside
    _, error = over_grpc(served, model, grpc_inputs(ASK), parameters={"min_length": 3})
    assert "`min_length` came as a parameter; send it beside the prompt" in str(error)


def test_a_sequence_is_refused_by_name_over_infer(served: Served) -> None:
    # The one model that has no stream, and so is reached by this door.
    body = {
        "inputs": [
            {"name": "QUERY", "shape": [1, 1], "datatype": "BYTES", "data": [PROMPT]},
            {"name": "REQUEST_OUTPUT_LEN", "shape": [1, 1], "datatype": "INT32", "data": [4]},
        ]
    }
    assert "outputs" in post(served, "preprocessing/infer", body)[1]
    _, refused = post(served, "preprocessing/infer", body | {"parameters": {"sequence_id": 7}})
    assert "`sequence_id` is not supported" in refused["error"]


@pytest.mark.parametrize(("sent", "found"), [(2**31, -(2**31)), (2**32, 0), (2**63 - 1, -1)])
def test_a_number_beyond_32_bits_that_comes_out_wrong_is_refused_by_name(served: Served, sent: int, found: int) -> None:
    _, answer = post(served, "peagle/generate", ASK | {"max_tokens": sent})
    assert answer["error"] == f"`max_tokens` is `{found}`, expected 1 or more"


def test_one_that_comes_out_right_cannot_be_told_from_another(served: Served) -> None:
    # Triton's own reader of JSON drops what is above 32 bits; docs/serving.md says so.
    _, answer = post(served, "peagle/generate", ASK | {"max_tokens": 2**32 + 5, "end_id": -1})
    assert answer["num_output_tokens"] == 5
