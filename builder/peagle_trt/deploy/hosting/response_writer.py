"""The one thread that talks to the server about requests in flight, so that the engine never waits for it."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from peagle_trt.decode.request import GenerationChunk
from peagle_trt.deploy.hosting.answer import Answer

logger = logging.getLogger(__name__)

Entry = tuple[Answer, GenerationChunk]

LOOK_SHARE = 0.1
"""Share of the thread's time that looks may take: with hundreds of requests in flight each takes a while."""


class ResponseWriter:
    """Hands chunks to their answers, in the order they were made, and in between looks after the requests in flight.

    Both are round trips between two processes, about 0.3 ms each. They must share a thread: a server that is asked
    whether a request was cancelled while its last response goes out reads freed memory and dies (seen with 2.51 and
    twelve clients; `TRITONBACKEND_ResponseFactoryIsCancelled`).

    Args:
        check: Called about every `check_period_seconds`, from this thread; more rarely where it takes long.
        check_period_seconds: Time between two calls.
    """

    def __init__(self, check: Callable[[], None], check_period_seconds: float) -> None:
        self._check = check
        self._check_period_seconds = check_period_seconds
        self._entries: queue.SimpleQueue[Entry | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="peagle-writer", daemon=True)
        self._thread.start()

    def put(self, answer: Answer, chunk: GenerationChunk) -> None:
        """Queues a chunk; returns at once."""
        self._entries.put((answer, chunk))

    def close(self) -> None:
        """Sends what is queued and stops."""
        self._entries.put(None)
        self._thread.join()

    def _run(self) -> None:
        check_at = time.monotonic()
        while True:
            try:
                entry = self._entries.get(timeout=max(0.0, check_at - time.monotonic()))
                if entry is None:
                    return
                _deliver(*entry)
            except queue.Empty:
                pass
            started_at = time.monotonic()
            if started_at >= check_at:
                self._look()
                ended_at = time.monotonic()
                check_at = ended_at + max(self._check_period_seconds, (ended_at - started_at) / LOOK_SHARE)

    def _look(self) -> None:
        try:
            self._check()
        except Exception:
            # Without this thread no client would ever be answered again.
            logger.exception("the requests in flight could not be checked")


def _deliver(answer: Answer, chunk: GenerationChunk) -> None:
    try:
        answer.receive(chunk)
    except Exception:
        # The server refuses a response to a client that is gone; the others must still be served.
        logger.exception("a response to `%s` could not be sent", chunk.request_id)
