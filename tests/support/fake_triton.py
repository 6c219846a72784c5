"""A stand-in for `triton_python_backend_utils`, the module that exists only inside the server, and for its clients."""

from __future__ import annotations

import json
import sys
import threading
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

FINAL = 1
WAIT_SECONDS = 20.0


class Tensor:
    """`pb_utils.Tensor`."""

    def __init__(self, name: str, array: NDArray[np.generic]) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> NDArray[np.generic]:
        return self._array


class TritonError(Exception):
    """`pb_utils.TritonError`; its codes are an enumeration of the server's own."""

    INVALID_ARG, UNAVAILABLE, INTERNAL, CANCELLED = "invalid", "unavailable", "internal", "cancelled"

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self._code = code

    def code(self) -> str:
        return self._code

    def message(self) -> str:
        return str(self)


class Response:
    """`pb_utils.InferenceResponse`."""

    def __init__(self, output_tensors: list[Tensor], error: Any = None) -> None:
        self._tensors, self._error = output_tensors, error

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> Any:
        return self._error

    def output_tensors(self) -> list[Tensor]:
        return self._tensors

    @property
    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Its tensors by name; for tests alone."""
        return {tensor.name(): tensor.as_numpy() for tensor in self._tensors}


class Sender:
    """`ResponseSender`: one client, and what it got."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, int]] = []
        self.has_left = False
        self.leaves_after: int | None = None
        self.num_looks = 0
        self.is_done = threading.Event()

    def send(self, response: Any = None, flags: int = 0) -> None:
        self.sent.append((response, flags))
        if flags == FINAL:
            self.is_done.set()

    def is_cancelled(self) -> bool:
        self.num_looks += 1
        return self.has_left or (self.leaves_after is not None and len(self.sent) >= self.leaves_after)

    def wait(self) -> list[tuple[Any, int]]:
        """What it got once its answer ended."""
        assert self.is_done.wait(WAIT_SECONDS)
        return self.sent


class Request:
    """`InferenceRequest` as a model gets it; a test may change what a client sent beside the tensors."""

    def __init__(self, **arrays: NDArray[np.generic]) -> None:
        self.arrays = arrays
        self.sender = Sender()
        self.beside: dict[str, object] = {}
        self.limit_microseconds, self.sequence, self.sequence_flags = 0, 0, 0

    def inputs(self) -> list[Tensor]:
        return [Tensor(name, array) for name, array in self.arrays.items()]

    def request_id(self) -> str:
        return "mine"

    def parameters(self) -> str:
        return json.dumps(self.beside) if self.beside else ""

    def timeout(self) -> int:
        return self.limit_microseconds

    def correlation_id(self) -> int | str:
        return self.sequence

    def flags(self) -> int:
        return self.sequence_flags

    def get_response_sender(self) -> Sender:
        return self.sender


def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put the stand-in where the models import it from."""
    module: Any = ModuleType("triton_python_backend_utils")
    module.Tensor, module.InferenceResponse, module.TritonError = Tensor, Response, TritonError
    module.TRITONSERVER_RESPONSE_COMPLETE_FINAL = FINAL
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", module)
    return module
