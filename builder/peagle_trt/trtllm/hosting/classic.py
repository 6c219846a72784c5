"""The classic ensemble's names before the llmapi model: checks what a client sent, sends pieces where it streams."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peagle_trt_repo.inputs import RequestFields, read_fields
from peagle_trt_repo.outputs import shaped
from peagle_trt_repo.python_backend import (
    InferenceRequest,
    ResponseSender,
    request_arrays,
    request_parameters,
    send_arrays,
    send_error,
)
from peagle_trt_repo.request_parameters import (
    ERROR_CODES,
    refuse_sequence,
    refuse_unhonoured_schedule,
    refuse_unknown_parameters,
)
from peagle_trt_repo.tensors import HARMLESS_VALUES
from peagle_trt_repo.values import InvalidRequestError

logger = logging.getLogger(__name__)

SERVED_MODEL = "tensorrt_llm"
MAX_REQUESTS = 256
"""Threads that wait for answers; the engine itself takes fewer at once."""
_HONOURED = frozenset(
    (
        "text_input",
        "max_tokens",
        "stream",
        "temperature",
        "top_k",
        "top_p",
        "seed",
        "random_seed",
        "stop_words",
        "exclude_input_in_output",
        "pad_id",
        "return_num_input_tokens",
        "return_num_output_tokens",
    )
)
"""Inputs of the classic ensemble that mean something here; every other must ask for nothing."""
_NEUTRAL: dict[str, tuple[object, ...]] = {
    **HARMLESS_VALUES,
    "repetition_penalty": (0, 1),
    "end_id": (),
    "draft_tokens": (),
    "input_ids": (),
}
_NOTHING = (0, b"", False)
_WANTED = ("text_output", "finish_reason", "num_input_tokens", "num_output_tokens")


class ClassicDoor:
    """Asks `tensorrt_llm` on behalf of clients of the classic ensemble."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MAX_REQUESTS, thread_name_prefix="peagle-door")

    def accept(self, request: InferenceRequest) -> None:
        """Queue a request; returns at once."""
        arrays = {name: array.copy() for name, array in request_arrays(request).items()}
        self._threads.submit(_answer, arrays, request, request.get_response_sender())

    def close(self) -> None:
        """Let answers that are on their way come to an end."""
        self._threads.shutdown()


def refuse_unhonoured(arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Refuse every input that would be left unread, unless its value asks for nothing.

    Raises:
        InvalidRequestError: There is one.
    """
    for name, array in arrays.items():
        values = array.reshape(-1).tolist()
        if name not in _HONOURED and any(value not in _NEUTRAL.get(name, _NOTHING) for value in values):
            raise InvalidRequestError(f"`{name}` is not supported with TensorRT-LLM and drafts; leave it out")


def served_arrays(fields: RequestFields) -> dict[str, NDArray[np.generic]]:
    """What a client of the classic ensemble asks for, under the names of the llmapi model."""
    arrays: dict[str, NDArray[np.generic]] = {
        "text_input": np.array([(fields.prompt_text or "").encode()], np.object_),
        "streaming": np.array([fields.is_streaming]),
        "sampling_param_max_tokens": np.array([fields.max_tokens], np.int32),
        "sampling_param_temperature": np.array([fields.temperature], np.float32),
        "return_finish_reason": np.array([True]),
    }
    if fields.top_k:
        arrays["sampling_param_top_k"] = np.array([fields.top_k], np.int32)
    if fields.top_p < 1.0:
        arrays["sampling_param_top_p"] = np.array([fields.top_p], np.float32)
    if fields.seed is not None:
        arrays["sampling_param_seed"] = np.array([fields.seed], np.uint64)
    if fields.stop_words:
        arrays["sampling_param_stop"] = np.array([word.encode() for word in fields.stop_words], np.object_)
    return arrays


def _answer(arrays: Mapping[str, NDArray[np.generic]], request: InferenceRequest, sender: ResponseSender) -> None:
    parameters = request_parameters(request)
    names_code = bool(parameters.get(ERROR_CODES))
    try:
        refuse_unknown_parameters(parameters)
        refuse_sequence(request.correlation_id(), request.flags())
        refuse_unhonoured_schedule(parameters, request.timeout())
        refuse_unhonoured(arrays)
        fields = read_fields(arrays)
        _pass_on(fields, _ask(served_arrays(fields)), sender)
    except InvalidRequestError as error:
        send_error(sender, "INVALID_ARG", str(error), names_code=names_code)
    except Exception as error:
        # The server would wait for this answer for ever.
        logger.exception("a request failed")
        send_error(sender, "INTERNAL", str(error), names_code=names_code)


def _pass_on(fields: RequestFields, answers: Iterator[dict[str, Any]], sender: ResponseSender) -> None:
    """Send pieces where the client streams, else the whole; a piece ends where no character is cut."""
    sent = "" if fields.excludes_prompt or fields.is_streaming else (fields.prompt_text or "")
    given = ""
    for answer in answers:
        if sender.is_cancelled():
            send_error(sender, "CANCELLED", "the client left")
            return
        is_last = bool(answer["finish_reason"])
        whole = answer["text_output"] if is_last else answer["text_output"].rstrip("\ufffd")
        piece, given = whole[len(given) :], max(whole, given, key=len)
        if not piece and not is_last:
            continue
        response = {"text_output": shaped([(sent + piece).encode()], "STRING")}
        if is_last:
            response |= {name: shaped([answer[name]], "INT32") for name in ("num_input_tokens", "num_output_tokens")}
            response["finish_reason"] = shaped([answer["finish_reason"].encode()], "STRING")
        send_arrays(sender, response, is_last=is_last)
        if is_last:
            return
    send_error(sender, "INTERNAL", f"`{SERVED_MODEL}` ended an answer without a reason")


def _ask(arrays: dict[str, NDArray[np.generic]]) -> Iterator[dict[str, Any]]:
    """What the llmapi model answers, response by response, in plain values."""
    import triton_python_backend_utils as pb_utils

    request = pb_utils.InferenceRequest(
        model_name=SERVED_MODEL,
        requested_output_names=list(_WANTED),
        inputs=[pb_utils.Tensor(name, array) for name, array in arrays.items()],
    )
    for response in request.exec(decoupled=True):
        if response.has_error():
            raise InvalidRequestError(response.error().message())
        tensors = {tensor.name(): tensor.as_numpy().reshape(-1)[0] for tensor in response.output_tensors()}
        if tensors:
            yield {name: value.decode() if isinstance(value, bytes) else value for name, value in tensors.items()}
