"""Calls from one served model to another, through the server."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peagle_trt_repo.outputs import shaped
from peagle_trt_repo.python_backend import ResponseSender, error_code_name, make_response

Tensors = dict[str, NDArray[np.generic]]
Parameters = Mapping[str, object]

STOP_PARAMETER = "triton_peagle_stop"
"""Parameter of a request to `peagle` that answers nothing: it ends the request that its value names."""


_FAILED = b"error"
_REASON = "text_output"
_STOPPABLE = re.compile(r"bls-[0-9a-f]{32}")


class MemberError(Exception):
    """A member's error; `error` is the server's own object, which can be passed on as it is."""

    def __init__(self, error: Any) -> None:
        super().__init__(str(error))
        self.error = error


class MemberSender:
    """The way back to a model that called this one.

    Once a caller has a response, an error never reaches it, and it would wait for ever; so the error travels in the
    outputs `finish_reason` and `text_output`, and `Call` makes an error of it again. Seen with 2.51.

    Args:
        sender: The server's own.
    """

    def __init__(self, sender: ResponseSender) -> None:
        self._sender = sender
        self._has_sent = False

    def send(self, response: Any = None, flags: int = 0) -> None:
        """See `ResponseSender`."""
        if response is None:
            self._sender.send(flags=flags)
            return
        if self._has_sent and response.has_error():
            error = response.error()
            told = f"{error_code_name(error)}:{error.message()}".encode()
            response = make_response({"finish_reason": shaped([_FAILED], "STRING"), _REASON: shaped([told], "STRING")})
        self._has_sent = True
        self._sender.send(response, flags=flags)

    def is_cancelled(self) -> bool:
        """See `ResponseSender`."""
        return self._sender.is_cancelled()


def is_member_request(request_id: str) -> bool:
    """Whether a request comes from a model, by its id."""
    return is_stoppable(request_id.partition(":")[0])


def new_name() -> str:
    """A name by which a request can be stopped; nobody can guess it."""
    return f"bls-{uuid.uuid4().hex}"


def is_stoppable(name: str) -> bool:
    """Whether a name is one of `new_name`."""
    return _STOPPABLE.fullmatch(name) is not None


def call(
    model_name: str,
    tensors: Mapping[str, NDArray[np.generic]],
    outputs: Sequence[str],
    *,
    parameters: Parameters | None = None,
) -> Tensors:
    """One answer of a model that gives one.

    Args:
        model_name: The member.
        tensors: Its inputs.
        outputs: Outputs wanted.
        parameters: Parameters of the request.

    Raises:
        MemberError: It refused or failed.
    """
    return _read(_request(model_name, tensors, outputs, parameters=parameters).exec())


class Call:
    """A call of a decoupled model: an iterator over its responses that can be stopped from another thread.

    Args:
        model_name: The member.
        tensors: Its inputs.
        outputs: Outputs wanted; a response may lack some.
        name: From `new_name`: whoever knows it can stop the request.
        client_name: What the client calls the request, for the log.
        timeout_microseconds: The client's time limit; 0 for none.
        parameters: Parameters of the request.
    """

    def __init__(
        self,
        model_name: str,
        tensors: Mapping[str, NDArray[np.generic]],
        outputs: Sequence[str],
        *,
        name: str,
        client_name: str = "",
        timeout_microseconds: int = 0,
        parameters: Parameters | None = None,
    ) -> None:
        self._model_name = model_name
        self._name = name
        wire_name = f"{name}:{client_name}" if client_name else name
        self._request = _request(
            model_name,
            tensors,
            [*outputs, _REASON],
            name=wire_name,
            timeout_microseconds=timeout_microseconds,
            parameters=parameters,
        )
        self._responses: Any = None

    def __iter__(self) -> Iterator[Tensors]:
        """Its responses, but for empty ones.

        Raises:
            MemberError: It refused, failed, or was stopped.
        """
        # Returns with the first response only.
        self._responses = self._request.exec(decoupled=True)
        for response in self._responses:
            tensors = _read(response)
            _raise_failure(tensors)
            if tensors:
                yield tensors

    def stop(self) -> None:
        """Ends it, and with it the iteration. A request that the member has not seen yet goes on: ask again.

        Source: triton-inference-server/python_backend#398; a server before 25.04 cannot cancel a member's request.
        """
        if hasattr(self._responses, "cancel"):
            self._responses.cancel()
            return
        # All inputs are optional, but the server refuses a request without any.
        tensors = {"stream": np.zeros((1, 1), np.bool_)}
        parameters = {STOP_PARAMETER: self._name}
        for _ in _request(self._model_name, tensors, ["text_output"], parameters=parameters).exec(decoupled=True):
            pass


def _request(
    model_name: str,
    tensors: Mapping[str, NDArray[np.generic]],
    outputs: Sequence[str],
    *,
    name: str = "",
    timeout_microseconds: int = 0,
    parameters: Parameters | None = None,
) -> Any:
    import triton_python_backend_utils as pb_utils

    return pb_utils.InferenceRequest(
        model_name=model_name,
        request_id=name,
        inputs=[pb_utils.Tensor(tensor_name, array) for tensor_name, array in tensors.items()],
        requested_output_names=list(outputs),
        timeout=timeout_microseconds,
        parameters=dict(parameters or {}),
    )


def _raise_failure(tensors: Tensors) -> None:
    import triton_python_backend_utils as pb_utils

    reasons: list[object] = tensors["finish_reason"].reshape(-1).tolist() if "finish_reason" in tensors else []
    if _FAILED not in reasons:
        return
    code, _, message = tensors[_REASON].reshape(-1).tolist()[0].decode().partition(":")
    raise MemberError(pb_utils.TritonError(message, getattr(pb_utils.TritonError, code)))


def _read(response: Any) -> Tensors:
    if response.has_error():
        raise MemberError(response.error())
    return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}
