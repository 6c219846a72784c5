"""What comes with a request beside its tensors: parameters, a time limit, a place in a sequence."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from peagle_trt_repo.tensors import NO_COUNTERPARTS, OTHER_NAMES, PEAGLE_INPUTS
from peagle_trt_repo.values import InvalidRequestError

ERROR_CODES = "peagle_error_codes"
"""A parameter of the request: every error begins with its code, as `INVALID_ARG: ...`. Over a gRPC stream an error is
text alone, and the header that would bring its code crashes the server in time (see `openai_door/engine_stream.py`)."""

PROTOCOL_PARAMETERS = frozenset(
    {
        ERROR_CODES,
        "id",
        "priority",
        "timeout",
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

TIMEOUT = "timeout"
MICROSECONDS = 1_000_000


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


def refuse_unknown_parameters(parameters: Mapping[str, object]) -> None:
    """Refuses what the server took for a parameter because it names no input, such as a misspelt `temprature`.

    A name that begins with `triton_` is no exception: one that nothing here reads would be taken and forgotten.

    Args:
        parameters: Parameters of the request.

    Raises:
        InvalidRequestError: There is one that asks for something and that nothing here honours.
    """
    for name, value in parameters.items():
        if name in PROTOCOL_PARAMETERS or (name in SEQUENCE_PARAMETERS and value in _NO_SEQUENCE):
            continue
        if name in SEQUENCE_PARAMETERS:
            raise InvalidRequestError(
                f"`{name}` is not supported: every request stands alone; send the whole prompt each time"
            )
        if name in NO_COUNTERPARTS:
            raise InvalidRequestError(f"`{name}` is no input of this model; {NO_COUNTERPARTS[name]}")
        close = difflib.get_close_matches(name, [field.name for field in PEAGLE_INPUTS], n=1)
        close = [OTHER_NAMES[name]] if name in OTHER_NAMES else close
        advice = f"; did you mean `{close[0]}`?" if close else ""
        raise InvalidRequestError(f"`{name}` is no input of this model{advice}")
