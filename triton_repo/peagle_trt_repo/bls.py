"""The model `tensorrt_llm_bls`: the ensemble's members one after the other, and an engine that stops with its client.

An ensemble cannot stop a member that is running, so its engine goes on for a client that has left; here it does not.

Source: tensorrtllm_backend r25.05, `tensorrt_llm_bls`: names, `accumulate_tokens`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from peagle_trt_repo.members import Call, MemberError, Parameters, Tensors, call, new_name
from peagle_trt_repo.outputs import shaped
from peagle_trt_repo.python_backend import (
    InferenceRequest,
    ResponseSender,
    request_arrays,
    request_parameters,
    send_arrays,
    send_error,
    send_final,
    send_member_error,
)
from peagle_trt_repo.request_parameters import (
    ERROR_CODES,
    TIMEOUT,
    refuse_sequence,
    refuse_unknown_parameters,
)
from peagle_trt_repo.tensors import ENSEMBLE_OUTPUTS, EnsembleStep, ensemble_steps
from peagle_trt_repo.values import InvalidRequestError

logger = logging.getLogger(__name__)

MAX_CONCURRENT_REQUESTS = 256
"""Threads; each mostly waits. As many requests as the model `peagle` lets wait by default."""
WATCH_SECONDS = 0.05
"""How often clients that left are looked for."""


class BlsHost:
    """Runs each request in a thread of its own.

    Args:
        accumulates: Every piece of a stream repeats the text before it, as classic clients of this model expect that
            were written for `accumulate_tokens: true`.
    """

    def __init__(self, *, accumulates: bool) -> None:
        self._accumulates = accumulates
        self._threads = ThreadPoolExecutor(MAX_CONCURRENT_REQUESTS, thread_name_prefix="peagle-bls")
        self._runs: set[_Run] = set()
        self._lock = threading.Lock()
        self._is_closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="peagle-bls-watch", daemon=True)
        self._watcher.start()

    def accept(self, request: InferenceRequest) -> None:
        """Takes one request; its answer goes to its sender."""
        run = _Run(request, accumulates=self._accumulates)
        with self._lock:
            self._runs.add(run)
        self._threads.submit(self._run, run)

    def close(self) -> None:
        """Waits for what is running."""
        self._threads.shutdown()
        self._is_closing.set()
        self._watcher.join()

    def _run(self, run: _Run) -> None:
        try:
            run.answer()
        finally:
            with self._lock:
                self._runs.discard(run)

    def _watch(self) -> None:
        while not self._is_closing.wait(WATCH_SECONDS):
            with self._lock:
                runs = list(self._runs)
            for run in runs:
                try:
                    run.stop_if_left()
                except Exception:
                    # One request that cannot be asked must not leave the others unwatched.
                    logger.exception("`%s` could not be stopped", run.name)


class _Run:
    """One request on its way through the members.

    Args:
        request: The request.
        accumulates: See `BlsHost`.
    """

    def __init__(self, request: InferenceRequest, *, accumulates: bool) -> None:
        self.name = new_name()
        self._request = request
        self._sender: ResponseSender = request.get_response_sender()
        self._parameters = request_parameters(request)
        self._names_codes = bool(self._parameters.get(ERROR_CODES))
        self._texts: dict[int, bytes] | None = {} if accumulates else None
        # A server that is asked whether a request was cancelled while its last response goes out dies.
        self._lock = threading.Lock()
        self._is_over = False
        self._call: Call | None = None

    def answer(self) -> None:
        """Asks the members and answers; errors go to the client too."""
        try:
            refuse_unknown_parameters(self._parameters)
            refuse_sequence(self._request.correlation_id(), self._request.flags())
            for tensors in self._pieces(request_arrays(self._request)):
                with self._lock:
                    send_arrays(self._sender, tensors, is_last=False)
            self._finish(send_final)
        except InvalidRequestError as error:
            message = str(error)
            self._finish(lambda sender: send_error(sender, "INVALID_ARG", message, names_code=self._names_codes))
        except MemberError as error:
            cause = error.error
            self._finish(lambda sender: send_member_error(sender, cause))
        except Exception as error:
            # The boundary to the server: whatever it was, this client must hear of it.
            logger.exception("`%s` failed", self.name)
            message = f"{type(error).__name__}: {error}"
            self._finish(lambda sender: send_error(sender, "INTERNAL", message, names_code=self._names_codes))

    def stop_if_left(self) -> None:
        """Stops the engine if the client has left; called again and again, from the watcher's thread."""
        with self._lock:
            if self._is_over or self._call is None or not self._sender.is_cancelled():
                return
        self._call.stop()

    def _finish(self, send: Any) -> None:
        with self._lock:
            self._is_over = True
            send(self._sender)

    def _pieces(self, arrays: Tensors) -> Iterator[Tensors]:
        before, engine, after = ensemble_steps()
        codes = self._passed_on(ERROR_CODES)
        read = call(before.model_name, _inputs(before, arrays), list(before.outputs), parameters=codes)
        tensors = arrays | _renamed(before, read)
        self._call = Call(
            engine.model_name,
            _inputs(engine, tensors),
            list(engine.outputs),
            name=self.name,
            client_name=self._request.request_id(),
            timeout_microseconds=self._request.timeout(),
            parameters=self._passed_on(ERROR_CODES, TIMEOUT),
        )
        for response in self._call:
            piece = _renamed(engine, response)
            piece |= _renamed(after, call(after.model_name, _inputs(after, piece), list(after.outputs)))
            if self._texts is not None:
                _accumulate(self._texts, piece)
            yield {name: array for name, array in piece.items() if name in _OUTPUT_NAMES}

    def _passed_on(self, *names: str) -> Parameters:
        return {name: self._parameters[name] for name in names if name in self._parameters}


_OUTPUT_NAMES = {field.name for field in ENSEMBLE_OUTPUTS}


def read_accumulates(config: Mapping[str, Any]) -> bool:
    """The parameter `accumulate_tokens`; classic repositories leave its placeholder unfilled for false.

    Args:
        config: The model's configuration, as the server gives it.
    """
    entry: Mapping[str, str] = config.get("parameters", {}).get("accumulate_tokens", {})
    return entry.get("string_value", "").lower() in ("true", "1", "yes")


def _inputs(step: EnsembleStep, tensors: Tensors) -> Tensors:
    return {name: tensors[source] for name, source in step.inputs.items() if source in tensors}


def _renamed(step: EnsembleStep, tensors: Tensors) -> Tensors:
    return {step.outputs[name]: array for name, array in tensors.items() if name in step.outputs}


def _accumulate(texts: dict[int, bytes], piece: Tensors) -> None:
    """Puts the text so far before a piece's; a piece of several answers says in `sequence_index` whose it is."""
    index = int(piece["sequence_index"].item()) if "sequence_index" in piece else 0
    values: list[bytes] = piece["text_output"].reshape(-1).tolist()
    if len(values) != 1:
        return
    texts[index] = texts.get(index, b"") + values[0]
    piece["text_output"] = np.asarray(shaped([texts[index]], "STRING"))
