"""A stand-in for the module that exists only inside the server."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray


class Tensor:
    def __init__(self, name: str, array: NDArray[np.generic]) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> NDArray[np.generic]:
        return self._array


class Response:
    def __init__(self, output_tensors: list[Tensor], error: Any = None) -> None:
        self.arrays = {tensor.name(): tensor.as_numpy() for tensor in output_tensors}
        self.error = error


class TritonError(Exception):
    INVALID_ARG, UNAVAILABLE, INTERNAL, CANCELLED = "invalid", "unavailable", "internal", "cancelled"

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class Request:
    def __init__(self, **arrays: NDArray[np.generic]) -> None:
        self._arrays = arrays

    def parameters(self) -> str:
        return ""

    def timeout(self) -> int:
        return 0

    def correlation_id(self) -> int | str:
        return 0

    def flags(self) -> int:
        return 0

    def inputs(self) -> list[Tensor]:
        return [Tensor(name, array) for name, array in self._arrays.items()]


@pytest.fixture
def pb_utils(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("triton_python_backend_utils")
    module.Tensor = Tensor  # type: ignore[attr-defined]
    module.InferenceResponse = Response  # type: ignore[attr-defined]
    module.TritonError = TritonError  # type: ignore[attr-defined]
    module.TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", module)
    return module


@pytest.fixture
def make_request() -> type[Request]:
    return Request
