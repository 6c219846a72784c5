"""One thread that owns the engine; requests come from any thread and are answered through callbacks."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from peagle_trt.decode.load import LoopLoad
from peagle_trt.decode.loop import DecodeLoop
from peagle_trt.decode.request import GenerationChunk, GenerationRequest
from peagle_trt.errors import OverloadError, PeagleError, RequestError

logger = logging.getLogger(__name__)

OnChunk = Callable[[GenerationChunk], None]

NEWCOMER_SHARE = 0.06
"""What of a step's time the next one waits at most: for clients whose answers have just ended, and where the engine was
idle for one request after another."""
MAX_NEWCOMER_SECONDS = 0.005
"""More than a client on the same machine takes to ask again, measured as 3 ms beside a busy engine."""


class EngineThread:
    """Runs a decode loop while there is work.

    Args:
        loop: The loop; nobody else may touch it while the thread runs.
    """

    def __init__(self, loop: DecodeLoop) -> None:
        self._loop = loop
        self._changed = threading.Condition()
        self._inbox: list[tuple[GenerationRequest, OnChunk]] = []
        self._cancelled: list[str] = []
        self._callbacks: dict[str, OnChunk] = {}
        self._closing = False
        self._num_ended = 0
        self._thread = threading.Thread(target=self._run, name="peagle-engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def load(self) -> LoopLoad:
        """What the loop is busy with; requests that it has not seen yet wait too."""
        load = self._loop.load
        return replace(load, num_waiting=load.num_waiting + len(self._inbox))

    def submit(self, request: GenerationRequest, on_chunk: OnChunk) -> None:
        """Hand a request over. A refusal arrives as a chunk with `finish_reason` "error", like every other outcome.

        Args:
            request: The request.
            on_chunk: Called from the engine's thread with every chunk; must not block.

        Raises:
            RequestError: The thread is closing.
        """
        with self._changed:
            if self._closing:
                raise RequestError("the engine is shutting down", hint="try another server")
            self._inbox.append((request, on_chunk))
            self._changed.notify()

    def cancel(self, request_id: str) -> None:
        """End a request at its next step."""
        with self._changed:
            self._cancelled.append(request_id)
            self._changed.notify()

    def close(self) -> None:
        """Cancel what is in flight, stop the thread and wait for it."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _wait_for_newcomers(self, step_seconds: float) -> None:
        """Give clients whose answers have just ended a moment to ask again: a step costs much the same without them."""
        num_missing = min(self._num_ended, self._loop.num_open_slots) if self._loop.has_work else 0
        self._num_ended = 0
        if num_missing:
            self._changed.wait_for(
                lambda: len(self._inbox) >= num_missing or self._closing, _newcomer_seconds(step_seconds)
            )

    def _wait_for_burst(self, step_seconds: float) -> None:
        """Let requests that come to an idle engine together begin together: one that began alone would hold up the
        others' prompts, of which a step reads little while an answer runs.
        """
        num_there = 0
        while num_there < len(self._inbox) < self._loop.num_open_slots and not self._closing:
            num_there = len(self._inbox)
            self._changed.wait(_newcomer_seconds(step_seconds))

    def _run(self) -> None:
        step_seconds = 0.0
        while True:
            # Whoever asks again while this lasts is in time for the next step.
            for chunk in self._loop.draft():
                self._deliver(chunk)
            with self._changed:
                self._wait_for_newcomers(step_seconds)
                while not (self._inbox or self._cancelled or self._closing or self._loop.has_work):
                    self._changed.wait()
                if not self._loop.has_work:
                    self._wait_for_burst(step_seconds)
                inbox, self._inbox = self._inbox, []
                cancelled, self._cancelled = self._cancelled, []
                closing = self._closing
            self._take(inbox)
            for request_id in [*cancelled, *(self._callbacks if closing else ())]:
                self._loop.cancel(request_id)
            started_at = time.perf_counter()
            for chunk in self._loop.step():
                self._deliver(chunk)
            step_seconds = time.perf_counter() - started_at
            if closing and not self._loop.has_work:
                return

    def _take(self, inbox: list[tuple[GenerationRequest, OnChunk]]) -> None:
        for request, on_chunk in inbox:
            try:
                self._loop.submit(request)
            except Exception as error:
                # Whatever it is, it is this request's alone: the thread serves all others.
                if not isinstance(error, PeagleError):
                    logger.exception("request `%s` could not begin", request.request_id)
                refusal = GenerationChunk(
                    request_id=request.request_id,
                    token_ids=(),
                    text="",
                    finish_reason="error",
                    error=str(error),
                    is_overload=isinstance(error, OverloadError),
                )
                _call(on_chunk, refusal)
            else:
                self._callbacks[request.request_id] = on_chunk

    def _deliver(self, chunk: GenerationChunk) -> None:
        last = chunk.finish_reason is not None
        self._num_ended += chunk.finish_reason in ("stop", "length")
        on_chunk = self._callbacks.pop(chunk.request_id) if last else self._callbacks[chunk.request_id]
        _call(on_chunk, chunk)


def _newcomer_seconds(step_seconds: float) -> float:
    return min(NEWCOMER_SHARE * step_seconds, MAX_NEWCOMER_SECONDS)


def _call(on_chunk: OnChunk, chunk: GenerationChunk) -> None:
    try:
        on_chunk(chunk)
    except Exception:
        # A caller's fault must not take the other requests down with it.
        logger.exception("the callback of request %s failed", chunk.request_id)
