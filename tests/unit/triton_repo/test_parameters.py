"""What the server took for a parameter because it names no input."""

from __future__ import annotations

import pytest

from peagle_trt_repo.inputs import InvalidRequestError, refuse_unknown_parameters


@pytest.mark.parametrize("name", ["id", "timeout", "priority", "sequence_start", "triton_enable_empty_final_response"])
def test_the_protocols_own_pass(name: str) -> None:
    refuse_unknown_parameters({name: 1})


def test_a_misspelt_input_gets_a_suggestion() -> None:
    with pytest.raises(InvalidRequestError, match="`max_token` is no input of this model; did you mean `max_tokens`"):
        refuse_unknown_parameters({"max_token": 5})


def test_a_strange_one_is_named() -> None:
    with pytest.raises(InvalidRequestError, match="`n` is no input of this model"):
        refuse_unknown_parameters({"n": 3})
