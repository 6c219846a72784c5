"""What the server took for a parameter because it names no input."""

from __future__ import annotations

import pytest

from peagle_trt_repo.request_parameters import refuse_unknown_parameters
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
