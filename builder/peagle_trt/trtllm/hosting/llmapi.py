"""Answers requests under the names of NVIDIA's llmapi model; a thread waits for each answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peagle_trt.trtllm.hosting.settings import forget_launcher, read_llm_settings
from peagle_trt_repo.llmapi_tensors import LLMAPI_INPUTS, LLMAPI_NAMES
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
from peagle_trt_repo.values import InvalidRequestError

logger = logging.getLogger(__name__)

Arrays = Mapping[str, NDArray[np.generic]]

_SETTINGS: dict[str, tuple[str, Callable[[Any], object]]] = {
    "sampling_param_max_tokens": ("max_tokens", int),
    "sampling_param_temperature": ("temperature", float),
    "sampling_param_top_k": ("top_k", int),
    "sampling_param_top_p": ("top_p", float),
    "sampling_param_seed": ("seed", int),
}
_UNHONOURED = {
    "sampling_param_best_of": 1,
    "sampling_param_frequency_penalty": 0,
    "sampling_param_presence_penalty": 0,
}
"""What TensorRT-LLM's sampler of one-engine decoding leaves unread, and the values that ask for nothing."""


class LlmApiHost:
    """TensorRT-LLM with a P-EAGLE head.

    Args:
        args: What Triton hands to `initialize`.

    Raises:
        PeagleError: TensorRT-LLM is absent or unknown, or `model.yaml` cannot be served.
    """

    def __init__(self, args: Mapping[str, str]) -> None:
        from peagle_trt.trtllm.plugin import install

        settings = read_llm_settings(Path(args["model_repository"]) / args["model_version"] / "model.yaml")
        forget_launcher()
        install()
        from tensorrt_llm import LLM, SamplingParams

        self._sampling = SamplingParams
        self._llm = LLM(**settings.arguments)
        self._threads = ThreadPoolExecutor(settings.max_requests, thread_name_prefix="peagle-answer")

    def accept(self, request: InferenceRequest) -> None:
        """Queue a request; returns at once."""
        arrays = {name: array.copy() for name, array in request_arrays(request).items()}
        self._threads.submit(self._answer, arrays, request, request.get_response_sender())

    def close(self) -> None:
        """Let what runs come to an end, and stop TensorRT-LLM."""
        self._threads.shutdown()
        self._llm.shutdown()

    def _answer(self, arrays: Arrays, request: InferenceRequest, sender: ResponseSender) -> None:
        parameters = request_parameters(request)
        names_code = bool(parameters.get(ERROR_CODES))
        try:
            refuse_unknown_parameters(parameters, inputs=LLMAPI_INPUTS, other_names=LLMAPI_NAMES, no_counterparts={})
            refuse_sequence(request.correlation_id(), request.flags())
            refuse_unhonoured_schedule(parameters, request.timeout())
            prompt, settings = read_prompt(arrays), read_sampling(arrays)
            is_streaming = bool(_value(arrays, "streaming", default=False))
            self._generate(prompt, settings, sender, arrays, is_streaming=is_streaming)
        except InvalidRequestError as error:
            send_error(sender, "INVALID_ARG", str(error), names_code=names_code)
        except Exception as error:
            # The server would wait for this answer for ever.
            logger.exception("a request failed")
            send_error(sender, "INTERNAL", str(error), names_code=names_code)

    def _generate(
        self, prompt: str, settings: dict[str, object], sender: ResponseSender, arrays: Arrays, *, is_streaming: bool
    ) -> None:
        running = self._llm.generate_async(prompt, self._sampling(**settings), streaming=is_streaming)
        for result in running if is_streaming else [running.result()]:
            if sender.is_cancelled():
                running.abort()
                send_error(sender, "CANCELLED", "the client left")
                return
            is_last = result.outputs[0].finish_reason is not None
            send_arrays(sender, _response(prompt, result, arrays), is_last=is_last)
            if is_last:
                return
        send_error(sender, "INTERNAL", "TensorRT-LLM ended an answer without a reason")


def read_prompt(arrays: Arrays) -> str:
    """The text to continue.

    Raises:
        InvalidRequestError: There is none, or more than one.
    """
    texts = arrays["text_input"].reshape(-1).tolist() if "text_input" in arrays else []
    if len(texts) != 1:
        raise InvalidRequestError(f"`text_input` holds {len(texts)} texts; expected 1")
    return _text(texts[0])


def read_sampling(arrays: Arrays) -> dict[str, object]:
    """Keyword arguments of `SamplingParams`.

    Raises:
        InvalidRequestError: An option would not be honoured, or holds more than one value.
    """
    for name, harmless in _UNHONOURED.items():
        if (value := _value(arrays, name, default=harmless)) != harmless:
            raise InvalidRequestError(f"`{name}` is {value}, which decoding with drafts does not honour; leave it out")
    settings = {
        argument: kind(_value(arrays, name, default=None))
        for name, (argument, kind) in _SETTINGS.items()
        if name in arrays
    }
    stops = [_text(each) for each in arrays.get("sampling_param_stop", np.array([])).reshape(-1).tolist()]
    return settings | ({"stop": [stop for stop in stops if stop]} if any(stops) else {})


def _response(prompt: str, result: Any, arrays: Arrays) -> dict[str, NDArray[np.generic]]:
    """One response; the text is the whole answer so far, as NVIDIA's model sends it."""
    output = result.outputs[0]
    excludes = _value(arrays, "sampling_param_exclude_input_from_output", default=True)
    text = output.text if excludes else prompt + output.text
    response: dict[str, NDArray[np.generic]] = {
        "text_output": _texts(text),
        "num_input_tokens": np.array([len(result.prompt_token_ids)], np.int32),
        "num_output_tokens": np.array([len(output.token_ids)], np.int32),
    }
    if _value(arrays, "return_finish_reason", default=False):
        response["finish_reason"] = _texts(output.finish_reason or "")
    if _value(arrays, "return_stop_reason", default=False):
        response["stop_reason"] = _texts(str(output.stop_reason or ""))
    return response


def _value(arrays: Arrays, name: str, *, default: object) -> object:
    if name not in arrays:
        return default
    values = arrays[name].reshape(-1).tolist()
    if len(values) != 1:
        raise InvalidRequestError(f"`{name}` holds {len(values)} values; expected 1")
    value: object = values[0]
    return value


def _text(value: object) -> str:
    try:
        return value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"a text is no UTF-8: {error}") from error


def _texts(text: str) -> NDArray[np.generic]:
    return np.array([text.encode()], np.object_)
