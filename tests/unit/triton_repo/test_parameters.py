"""What the server took for a parameter because it names no input."""

from __future__ import annotations

import pytest

from peagle_trt_repo.llmapi_tensors import LLMAPI_INPUTS, LLMAPI_NAMES
from peagle_trt_repo.request_parameters import (
    refuse_sequence,
    refuse_unhonoured_schedule,
    refuse_unknown_parameters,
)
from peagle_trt_repo.values import InvalidRequestError


@pytest.mark.parametrize("name", ["id", "timeout", "priority", "triton_enable_empty_final_response"])
def test_the_protocols_own_pass(name: str) -> None:
    refuse_unknown_parameters({name: 1})


def test_a_misspelt_input_gets_a_suggestion() -> None:
    with pytest.raises(InvalidRequestError, match="`max_token` is no input of this model; did you mean `max_tokens`"):
        refuse_unknown_parameters({"max_token": 5})


def test_a_strange_one_is_named() -> None:
    with pytest.raises(InvalidRequestError, match="`n` is no input of this model"):
        refuse_unknown_parameters({"n": 3})


@pytest.mark.parametrize(
    "sent", [("sequence_id", 7), ("sequence_id", "a"), ("sequence_start", True), ("sequence_end", 1)]
)
def test_what_joins_requests_is_refused_by_name(sent: tuple[str, object]) -> None:
    with pytest.raises(InvalidRequestError, match=f"`{sent[0]}` is not supported: every request stands alone"):
        refuse_unknown_parameters(dict([sent]))


def test_fillers_that_join_nothing_pass() -> None:
    refuse_unknown_parameters({"sequence_id": 0, "sequence_start": False, "sequence_end": False})
    refuse_unknown_parameters({"sequence_id": ""})


@pytest.mark.parametrize("name", ["triton_peagle_stop", "triton_trace", "triton_temperature"])
def test_the_servers_prefix_hides_nothing(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"`{name}` is no input of this model"):
        refuse_unknown_parameters({name: 1})


@pytest.mark.parametrize(
    ("correlation_id", "flags", "name"),
    [(7, 0, "sequence_id"), ("mine", 0, "sequence_id"), (0, 1, "sequence_start"), ("", 2, "sequence_end")],
)
def test_a_sequence_that_the_server_took_out_of_the_parameters_is_refused(
    correlation_id: int | str, flags: int, name: str
) -> None:
    with pytest.raises(InvalidRequestError, match=f"`{name}` is not supported: every request stands alone"):
        refuse_sequence(correlation_id, flags)


@pytest.mark.parametrize("correlation_id", [0, "", "0"])
def test_a_request_of_no_sequence_passes(correlation_id: int | str) -> None:
    refuse_sequence(correlation_id, 0)


@pytest.mark.parametrize(
    ("parameters", "limit", "name"),
    [({}, 5, "timeout"), ({"timeout": 5}, 0, "timeout"), ({"priority": 1}, 0, "priority")],
)
def test_an_engine_without_limits_and_priorities_refuses_them(
    parameters: dict[str, object], limit: int, name: str
) -> None:
    with pytest.raises(InvalidRequestError, match=f"`{name}` is not supported with TensorRT-LLM"):
        refuse_unhonoured_schedule(parameters, limit)


def test_such_an_engine_takes_what_limits_nothing() -> None:
    refuse_unhonoured_schedule({"timeout": 0, "priority": 0}, 0)


@pytest.mark.parametrize(
    ("other", "named"), [("stop_words", "sampling_param_stop"), ("stream", "streaming"), ("text_inputs", "text_input")]
)
def test_a_name_of_the_classic_ensemble_leads_to_that_of_the_llmapi_model(other: str, named: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"`{other}`.*did you mean `{named}`"):
        refuse_unknown_parameters({other: 1}, inputs=LLMAPI_INPUTS, other_names=LLMAPI_NAMES, no_counterparts={})


@pytest.mark.parametrize("name", ["temperature", "min_length"])
def test_an_input_among_the_parameters_is_told_where_it_belongs(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"`{name}` came as a parameter; send it beside the prompt"):
        refuse_unknown_parameters({name: 1})
