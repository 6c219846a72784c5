"""The few calls of Triton's python backend that the models need, typed; its module exists only inside the server."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

ErrorCode = Literal["INVALID_ARG", "UNAVAILABLE", "INTERNAL", "CANCELLED"]


class InputTensor(Protocol):
    """A tensor of a request."""

    def name(self) -> str:
        """Name on the wire."""
        ...

    def as_numpy(self) -> NDArray[np.generic]:
        """Its values; strings come as bytes."""
        ...


class ResponseSender(Protocol):
    """The way back to one client."""

    def send(self, response: object | None = None, flags: int = 0) -> None:
        """Sends a response, or only a flag."""
        ...

    def is_cancelled(self) -> bool:
        """Whether the client has left."""
        ...


class InferenceRequest(Protocol):
    """One request."""

    def inputs(self) -> Sequence[InputTensor]:
        """The tensors that were sent; optional ones may be absent."""
        ...

    def request_id(self) -> str:
        """What its client calls it, or nothing."""
        ...

    def parameters(self) -> str:
        """Parameters of the request, a JSON object: over HTTP, every key that names no input ends up here."""
        ...

    def correlation_id(self) -> int | str:
        """The sequence that a client says it belongs to, 0 or empty for none."""
        ...

    def flags(self) -> int:
        """Whether it begins or ends that sequence."""
        ...

    def timeout(self) -> int:
        """Microseconds that a client gives the request, 0 for any; the generate endpoint puts it in the parameters."""
        ...

    def get_response_sender(self) -> ResponseSender:
        """Its sender; decoupled models only."""
        ...


def request_arrays(request: InferenceRequest) -> dict[str, NDArray[np.generic]]:
    """Tensors of a request by name."""
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def request_parameters(request: InferenceRequest) -> dict[str, object]:
    """Parameters of a request by name."""
    parameters: dict[str, object] = json.loads(request.parameters() or "{}")
    return parameters


def make_response(arrays: Mapping[str, NDArray[np.generic]]) -> object:
    """A response of the server's own type."""
    import triton_python_backend_utils as pb_utils

    return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in arrays.items()])


def make_error(code: ErrorCode, message: str, *, names_code: bool = False) -> object:
    """A response that carries nothing but an error; `names_code` puts the code before the message too."""
    import triton_python_backend_utils as pb_utils

    told = f"{code}: {message}" if names_code else message
    error = pb_utils.TritonError(told, getattr(pb_utils.TritonError, code))
    return pb_utils.InferenceResponse(output_tensors=[], error=error)


def error_code_name(error: object) -> ErrorCode:
    """The name of the code of one of the server's errors; a code that is none of ours counts as INTERNAL.

    Args:
        error: `TritonError`; its codes are an enumeration that prints as `__ErrorCode.UNAVAILABLE`.
    """
    import triton_python_backend_utils as pb_utils

    code = error.code()  # type: ignore[attr-defined]
    names: tuple[ErrorCode, ...] = get_args(ErrorCode)
    return next((name for name in names if getattr(pb_utils.TritonError, name) == code), "INTERNAL")


def send_arrays(sender: ResponseSender, arrays: Mapping[str, NDArray[np.generic]], *, is_last: bool) -> None:
    """Sends one response; the final flag rides on the last one, for clients that decode every response they get."""
    sender.send(make_response(arrays), flags=_final_flag() if is_last else 0)


def send_error(sender: ResponseSender, code: ErrorCode, message: str, *, names_code: bool = False) -> None:
    """Ends a request with an error; see `make_error`."""
    sender.send(make_error(code, message, names_code=names_code), flags=_final_flag())


def send_member_error(sender: ResponseSender, error: object) -> None:
    """Ends a request with the error that another model gave."""
    import triton_python_backend_utils as pb_utils

    sender.send(pb_utils.InferenceResponse(output_tensors=[], error=error), flags=_final_flag())


def send_final(sender: ResponseSender) -> None:
    """Ends a request whose last response has gone out already."""
    sender.send(flags=_final_flag())


def require_working_numpy() -> None:
    """Refuses an environment in which the first request would crash the model or come out empty.

    Raises:
        RuntimeError: This is numpy 2, and the server is the one inside nvidia-pytriton or a container before 24.11.

    Source: triton-inference-server/python_backend#384; with 2.51 and numpy 2.2 the model process dies of a request.
    """
    if int(np.__version__.split(".")[0]) >= 2 and _is_server_before_numpy_2():
        raise RuntimeError(
            f"numpy {np.__version__} does not work inside this server; "
            "install `numpy<2` into the environment of the models"
        )


def _is_server_before_numpy_2() -> bool:
    # The server is the parent process; containers say their release in the environment, as `24.10`.
    if "pytriton" in _parent_program().parts:
        return True
    release = os.environ.get("NVIDIA_TRITON_SERVER_VERSION", "")
    return bool(re.fullmatch(r"\d+\.\d+", release)) and tuple(map(int, release.split("."))) < (24, 11)


def _parent_program() -> Path:
    """The parent's program; empty where it is another user's, or the system has no /proc."""
    try:
        return Path(f"/proc/{os.getppid()}/exe").readlink()
    except OSError:
        return Path()


def _final_flag() -> int:
    import triton_python_backend_utils as pb_utils

    return int(pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
