"""Whatever a client puts into the inputs, it gets an answer or the reason why not, and the model lives on."""

from __future__ import annotations

import queue
import re
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from peagle_trt_repo.outputs import NUMPY_TYPES
from peagle_trt_repo.tensors import ENSEMBLE_INPUTS, PEAGLE_INPUTS, TensorField

from .conftest import Served

NUM_CASES = 120
DEADLINE_SECONDS = 30.0
MODELS = {"peagle": PEAGLE_INPUTS, "tensorrt_llm_bls": ENSEMBLE_INPUTS, "ensemble": ENSEMBLE_INPUTS}
SOUND: dict[str, Any] = {"text_input": b"2 + 3", "max_tokens": 2}
SETTINGS = settings(max_examples=NUM_CASES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
OURS = re.compile(r"Traceback|\w+(Error|Exception)\b|not healthy|connect|closed", re.IGNORECASE)
"""What an error says that is no refusal. Without its header a stream's error is text alone, and with the header
`triton_grpc_error` a 2.51 server dies of signal 11 after a few refusals."""

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "BOOL": st.booleans(),
    "FP16": st.floats(width=16),
    "FP32": st.floats(width=32) | st.sampled_from([0.0, 0.5, 1.0]),
    "INT32": st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 9),
    "UINT64": st.integers(0, 2**64 - 1),
    "STRING": st.binary(max_size=12) | st.text(max_size=8).map(lambda text: text.encode("utf-8", "surrogatepass")),
}
SMALL = st.integers(-(2**31), 3)
"""Large numbers of tokens are honoured, and take their time."""


def arrays(field: TensorField) -> st.SearchStrategy[Any]:
    """Tensors of an input's own type and of nearly its own shape."""
    values = SMALL if field.name == "max_tokens" else VALUES[field.data_type]
    free = field.dims[0] == -1 or len(field.dims) > 1
    lists = st.lists(values, min_size=1, max_size=5 if free else 1)
    shape = (1, *([1] * (len(field.dims) - 1)), -1)
    return lists.map(lambda row: np.array(row, NUMPY_TYPES[field.data_type]).reshape(shape))


def sound(fields: tuple[TensorField, ...]) -> dict[str, Any]:
    """A request without a fault."""
    types = {field.name: NUMPY_TYPES[field.data_type] for field in fields}
    return {name: np.array([[value]], types[name]) for name, value in SOUND.items()}


def requests(fields: tuple[TensorField, ...]) -> st.SearchStrategy[dict[str, Any]]:
    """A sound request with some inputs spoilt, or only the spoilt ones."""
    by_name = {field.name: field for field in fields}
    names = st.lists(st.sampled_from(sorted(by_name)), unique=True, max_size=4)
    spoilt = names.flatmap(lambda chosen: st.fixed_dictionaries({name: arrays(by_name[name]) for name in chosen}))
    return spoilt.map(lambda changed: {**sound(fields), **changed}) | spoilt


def ask(served: Served, model: str, tensors: dict[str, Any]) -> str:
    """Sends it over gRPC; the error, or nothing for an answer."""
    import tritonclient.grpc as grpc_client

    results: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    with grpc_client.InferenceServerClient(f"127.0.0.1:{served.server.ports.grpc}") as client:
        client.start_stream(lambda result, error: results.put((result, error)))
        inputs = []
        for name, array in tensors.items():
            kind = {np.object_: "BYTES", np.float16: "FP16", np.float32: "FP32", np.bool_: "BOOL"}.get(array.dtype.type)
            tensor = grpc_client.InferInput(name, list(array.shape), kind or array.dtype.name.upper())
            tensor.set_data_from_numpy(array)
            inputs.append(tensor)
        client.async_stream_infer(model, inputs, enable_empty_final_response=True)
        while True:
            result, error = results.get(timeout=DEADLINE_SECONDS)
            if error is not None:
                client.stop_stream()
                return str(error) or "an error without a word: closed"
            if result.get_response().parameters["triton_final_response"].bool_param:
                client.stop_stream()
                return ""


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_no_tensor_is_a_fault_of_ours(served: Served, model: str) -> None:
    @SETTINGS
    @given(tensors=requests(MODELS[model]))
    def check(tensors: dict[str, Any]) -> None:
        error = ask(served, model, tensors)
        assert OURS.search(error) is None, error

    check()
    served.server.require_alive()
    assert ask(served, model, sound(MODELS[model])) == ""


TRITONS = re.compile("parse|Unable|Expected JSON object for keyword: 'parameters'")
"""What the server itself says of a body, in error 500."""
NUMBERS = st.integers(-(2**31), 2**31 - 1) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
NAMES = sorted({field.name for field in PEAGLE_INPUTS} | {"nonsense", "id", "priority", "parameters"} - {"max_tokens"})
BODIES = st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4).map(
    lambda changed: {"text_input": "2 + 3", "max_tokens": 2, **changed}
)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["generate", "generate_stream"])
def test_no_json_is_a_fault_of_ours(served: Served, path: str) -> None:
    address = f"http://127.0.0.1:{served.server.ports.http}/v2/models/peagle/{path}"
    with httpx.Client(timeout=DEADLINE_SECONDS) as client:

        @SETTINGS
        @given(body=BODIES)
        def check(body: dict[str, Any]) -> None:
            response = client.post(address, json=body)
            # The server itself answers 500 to a value that does not fit its tensor, and never asks the model.
            own_fault = response.status_code >= 500 and TRITONS.search(response.text) is None
            assert not own_fault, (body, response.status_code, response.text)
            assert "Traceback" not in response.text

        check()
    served.server.require_alive()
