"""Sends responses from a thread of its own, so that the engine never waits for the server."""

from __future__ import annotations

import logging
import queue
import threading

from peagle_trt.decode.request import GenerationChunk
from peagle_trt.deploy.hosting.answer import Answer

logger = logging.getLogger(__name__)


class ResponseWriter:
    """One thread that hands chunks to their answers, in the order they were made.

    A send is a round trip between two processes, about 0.3 ms; with eight answers in flight that is a good part of
    an engine step.
    """

    def __init__(self) -> None:
        self._chunks: queue.SimpleQueue[tuple[Answer, GenerationChunk] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="peagle-writer", daemon=True)
        self._thread.start()

    def put(self, answer: Answer, chunk: GenerationChunk) -> None:
        """Queues a chunk; returns at once."""
        self._chunks.put((answer, chunk))

    def close(self) -> None:
        """Sends what is queued and stops."""
        self._chunks.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (entry := self._chunks.get()) is not None:
            answer, chunk = entry
            try:
                answer.receive(chunk)
            except Exception:
                # The server refuses a response to a client that is gone; the others must still be served.
                logger.exception("a response to `%s` could not be sent", chunk.request_id)
