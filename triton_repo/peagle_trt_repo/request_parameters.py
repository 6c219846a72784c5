"""What comes with a request beside its tensors: parameters, a time limit, a place in a sequence."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from peagle_trt_repo.tensors import NO_COUNTERPARTS, OTHER_NAMES, PEAGLE_INPUTS, TensorField
from peagle_trt_repo.values import InvalidRequestError

ERROR_CODES = "peagle_error_codes"
"""A parameter of the request: every error begins with its code, as `INVALID_ARG: ...`. Over a gRPC stream an error is
text alone, and the header that would bring its code crashes the server in time (see `openai_door/engine_stream.py`)."""

TIMEOUT, PRIORITY = "timeout", "priority"
MICROSECONDS = 1_000_000

PROTOCOL_PARAMETERS = frozenset(
    {
        ERROR_CODES,
        "id",
        PRIORITY,
        TIMEOUT,
        "binary_data_output",
        "headers",
        "triton_enable_empty_final_response",
    }
)
"""Source: KServe v2 and Triton's extensions of it (schedule policy, binary data, generate, decoupled models)."""

SEQUENCE_PARAMETERS = frozenset({"sequence_id", "sequence_start", "sequence_end"})
"""They join requests at a model with a state; their values that join nothing pass. Source: Triton's protocol extension
"sequence"."""

_NO_SEQUENCE = (0, "", "0", False)
_START_FLAG, _END_FLAG = 1, 2
"""Source: Triton's core, `TRITONSERVER_REQUEST_FLAG_SEQUENCE_START` and `..._END`."""


def read_deadline(parameters: Mapping[str, object], timeout_microseconds: int) -> float | None:
    """When a client's time is up, in seconds from now; None for any time.

    Args:
        parameters: Parameters of the request, where the generate endpoint leaves `timeout`.
        timeout_microseconds: `timeout` of the other protocols, 0 without one.

    Raises:
        InvalidRequestError: It is no number of microseconds.

    Source: Triton's protocol extension "schedule policy"; both measured with tritonserver 2.51.
    """
    sent = parameters.get(TIMEOUT, timeout_microseconds)
    if isinstance(sent, bool) or not isinstance(sent, int) or sent < 0:
        raise InvalidRequestError(f"`{TIMEOUT}` is `{sent}`, expected a whole number of microseconds")
    return sent / MICROSECONDS if sent else None


def refuse_unhonoured_schedule(parameters: Mapping[str, object], timeout_microseconds: int) -> None:
    """Refuses a time limit and a priority where an engine that has neither answers.

    Args:
        parameters: Parameters of the request.
        timeout_microseconds: `timeout` of the other protocols, 0 without one.

    Raises:
        InvalidRequestError: There is one.
    """
    asked = {TIMEOUT: read_deadline(parameters, timeout_microseconds), PRIORITY: parameters.get(PRIORITY)}
    unhonoured = [name for name, value in asked.items() if value]
    if unhonoured:
        raise InvalidRequestError(f"`{unhonoured[0]}` is not supported with TensorRT-LLM; leave it out")


def refuse_sequence(correlation_id: int | str, flags: int) -> None:
    """Refuses a place in a sequence: gRPC and `/infer` take it out of the parameters, the generate endpoint does not.

    Args:
        correlation_id: What the client sent as `sequence_id`; 0 or empty for none.
        flags: Whether it begins or ends there.

    Raises:
        InvalidRequestError: There is one, and every request stands alone here.
    """
    sent = {
        "sequence_id": correlation_id,
        "sequence_start": bool(flags & _START_FLAG),
        "sequence_end": bool(flags & _END_FLAG),
    }
    _refuse_sequence_parameters(sent)


def refuse_unknown_parameters(
    parameters: Mapping[str, object],
    *,
    inputs: Sequence[TensorField] = PEAGLE_INPUTS,
    other_names: Mapping[str, str] = OTHER_NAMES,
    no_counterparts: Mapping[str, str] = NO_COUNTERPARTS,
) -> None:
    """Refuses what the server took for a parameter because it names no input, such as a misspelt `temprature`.

    A name that begins with `triton_` is no exception: one that nothing here reads would be taken and forgotten.

    Args:
        parameters: Parameters of the request.
        inputs: Inputs of the model.
        other_names: Names of other models, and the input that means the same.
        no_counterparts: Names of other models that nothing stands for, and why.

    Raises:
        InvalidRequestError: There is one that asks for something and that nothing here honours, or an input that a
            client of gRPC put among them; the generate endpoint makes an input of it.
    """
    _refuse_sequence_parameters(parameters)
    for name in parameters:
        if name in PROTOCOL_PARAMETERS or name in SEQUENCE_PARAMETERS:
            continue
        if name in no_counterparts:
            raise InvalidRequestError(f"`{name}` is no input of this model; {no_counterparts[name]}")
        if name in {field.name for field in inputs}:
            raise InvalidRequestError(f"`{name}` came as a parameter; send it beside the prompt, as an input")
        close = difflib.get_close_matches(name, [field.name for field in inputs], n=1)
        close = [other_names[name]] if name in other_names else close
        advice = f"; did you mean `{close[0]}`?" if close else ""
        raise InvalidRequestError(f"`{name}` is no input of this model{advice}")


def _refuse_sequence_parameters(parameters: Mapping[str, object]) -> None:
    for name, value in parameters.items():
        if name in SEQUENCE_PARAMETERS and value not in _NO_SEQUENCE:
            raise InvalidRequestError(
                f"`{name}` is not supported: every request stands alone; send the whole prompt each time"
            )
