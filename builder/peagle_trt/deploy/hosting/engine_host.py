"""A build behind the `peagle` model: admits requests, looks for clients that left, counts what was done."""

from __future__ import annotations

import functools
import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from peagle_trt.decode.guidance import GuideCompiler
from peagle_trt.decode.request import GenerationChunk, GenerationRequest
from peagle_trt.decode.several import sequence_requests
from peagle_trt.decode.text import TextTokenizer
from peagle_trt.deploy.hosting.answer import Answer, Part, Reply
from peagle_trt.deploy.hosting.generation import make_generation_request
from peagle_trt.deploy.hosting.request_log import log_answer, request_name
from peagle_trt.deploy.hosting.response_writer import ResponseWriter
from peagle_trt.deploy.hosting.serving_metrics import ServingMetrics
from peagle_trt.deploy.hosting.settings import HostSettings
from peagle_trt.errors import RequestError
from peagle_trt.spec import EngineManifest
from peagle_trt_repo.inputs import RequestFields, read_fields
from peagle_trt_repo.members import STOP_PARAMETER, MemberSender, is_member_request, is_stoppable
from peagle_trt_repo.python_backend import (
    InferenceRequest,
    ResponseSender,
    request_arrays,
    request_parameters,
    send_error,
    send_final,
)
from peagle_trt_repo.request_parameters import ERROR_CODES, read_deadline, refuse_sequence, refuse_unknown_parameters
from peagle_trt_repo.values import InvalidRequestError

logger = logging.getLogger(__name__)


class Driver(Protocol):
    """The engine thread, as far as the host sees it."""

    def start(self) -> None:
        """Starts stepping."""
        ...

    def submit(self, request: GenerationRequest, on_chunk: Callable[[GenerationChunk], None]) -> None:
        """Queues a request; `on_chunk` is called from the engine thread."""
        ...

    def cancel(self, request_id: str) -> None:
        """Ends a request at the next step; unknown ids are ignored."""
        ...

    def close(self) -> None:
        """Stops the thread."""
        ...


class EngineHost:
    """Runs requests of many clients through one engine thread.

    Args:
        driver: The engine thread, not yet started.
        manifest: The build's record.
        tokenizer: The build's text side.
        settings: The model's parameters.
        counters: Where finished answers are counted.
    """

    def __init__(
        self,
        driver: Driver,
        manifest: EngineManifest,
        tokenizer: TextTokenizer,
        *,
        settings: HostSettings,
        counters: ServingMetrics,
    ) -> None:
        self._driver = driver
        self._manifest = manifest
        self._tokenizer = tokenizer
        self._settings = settings
        self._guides = GuideCompiler(tokenizer, manifest.target.vocab_size, manifest.target.eos_token_ids)
        self._counters = counters
        self._replies: dict[str, Reply] = {}
        self._lock = threading.Lock()
        self._request_numbers = itertools.count(1)
        self._writer = ResponseWriter(self._check, settings.cancellation_check_period_ms / 1000)
        driver.start()

    def accept(self, request: InferenceRequest) -> None:
        """Takes one request; its answer, or the reason for none, goes to its sender."""
        sender: ResponseSender = request.get_response_sender()
        if is_member_request(request.request_id()):
            sender = MemberSender(sender)
        parameters = request_parameters(request)
        name = request_name(next(self._request_numbers), request.request_id(), parameters)
        if STOP_PARAMETER in parameters:
            self._stop(str(parameters[STOP_PARAMETER]))
            send_final(sender)
            return
        names_codes = bool(parameters.get(ERROR_CODES))
        try:
            refuse_unknown_parameters(parameters)
            refuse_sequence(request.correlation_id(), request.flags())
            deadline = read_deadline(parameters, request.timeout())
            self._submit(name, read_fields(request_arrays(request)), sender, deadline, names_codes)
        except (InvalidRequestError, RequestError) as error:
            logger.info("%s: refused: %s", name, error)
            send_error(sender, "INVALID_ARG", str(error), names_code=names_codes)

    def close(self) -> None:
        """Stops the engine and everything around it."""
        self._driver.close()
        self._writer.close()

    def _stop(self, client_name: str) -> None:
        """Ends the request that another model gave this name; names that a client could guess are nobody's to stop."""
        if not is_stoppable(client_name):
            return
        with self._lock:
            names = [name for name in self._replies if f":{client_name}" in name]
        for name in names:
            self._driver.cancel(name)

    def _submit(
        self,
        request_id: str,
        fields: RequestFields,
        sender: ResponseSender,
        deadline_seconds: float | None,
        names_codes: bool,
    ) -> None:
        request = make_generation_request(
            request_id,
            fields,
            tokenizer=self._tokenizer,
            manifest=self._manifest,
            guides=self._guides,
            default_draft_tokens="auto" if self._settings.default_draft_tokens == "auto" else None,
            default_prompt_lookup=self._settings.default_prompt_lookup,
            deadline_seconds=deadline_seconds,
        )
        reply = Reply(
            sender=sender,
            is_streaming=fields.is_streaming,
            returns_text_bytes=fields.returns_text_bytes,
            num_top_log_probs=fields.num_top_log_probs,
            names_error_codes=names_codes,
            on_finish=self._finish,
            parts=[Part() for _ in range(fields.num_sequences)],
        )
        if not fields.is_streaming and self._returns_prompt(fields):
            for part in reply.parts:
                part.text = self._tokenizer.decode(request.prompt_ids)
                part.token_ids = list(request.prompt_ids)
        self._start(sequence_requests(request, fields.num_sequences), reply)

    def _start(self, requests: Sequence[GenerationRequest], reply: Reply) -> None:
        with self._lock:
            is_full = len(self._replies) + len(requests) > self._settings.max_pending_requests
            if not is_full:
                self._replies |= dict.fromkeys([request.request_id for request in requests], reply)
        if is_full:
            logger.warning("%s: refused: too many requests are pending", requests[0].request_id)
            message = f"{self._settings.max_pending_requests} requests are pending"
            send_error(reply.sender, "UNAVAILABLE", message, names_code=reply.names_error_codes)
            return
        for index, request in enumerate(requests):
            self._hand_over(request, Answer(reply, index))

    def _hand_over(self, request: GenerationRequest, answer: Answer) -> None:
        on_chunk = functools.partial(self._writer.put, answer)
        try:
            self._driver.submit(request, on_chunk)
        except RequestError as error:
            on_chunk(
                GenerationChunk(
                    request_id=request.request_id, token_ids=(), text="", finish_reason="error", error=str(error)
                )
            )

    def _returns_prompt(self, fields: RequestFields) -> bool:
        if fields.excludes_prompt is None:
            return not self._settings.exclude_input_in_output
        return not fields.excludes_prompt

    def _finish(self, chunk: GenerationChunk) -> None:
        with self._lock:
            self._replies.pop(chunk.request_id, None)
        self._counters.count_answer(chunk)
        log_answer(chunk)

    def _check(self) -> None:
        """Looks for clients that left, and publishes the counters. Runs in the writer's thread, as `_finish` does."""
        with self._lock:
            replies = list(self._replies.items())
        unwanted = {key for key, reply in {id(reply): reply for _, reply in replies}.items() if reply.is_unwanted()}
        for request_id, reply in replies:
            if id(reply) in unwanted:
                self._driver.cancel(request_id)
        self._counters.publish()
