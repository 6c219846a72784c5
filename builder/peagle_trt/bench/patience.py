"""Many requests of a server at once, of which none takes for ever and a few may fail without ending a run."""

from __future__ import annotations

import functools
import http.client
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from peagle_trt.bench.clients import ClientAnswer, failed_answer
from peagle_trt.errors import PeagleError

REQUEST_TIMEOUT_SECONDS = 600.0
MAX_FAILURES_IN_A_ROW = 5
"""For every request in flight: what has failed so often without one answer between is not a server any more."""


class Ask(Protocol):
    """Asks for one prompt; ends by itself within the limit of its client."""

    def __call__(self, index: int, prompt: str, /) -> ClientAnswer:
        """Ask.

        Raises:
            PeagleError: No whole answer came; so do the errors of sockets and of HTTP.
        """
        ...


@dataclass(slots=True)
class Patience:
    """What a run puts up with.

    Attributes:
        timeout_seconds: Longest time for one request, from its connection to its last piece.
    """

    timeout_seconds: float = REQUEST_TIMEOUT_SECONDS
    _in_a_row: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer_together(self, ask: Ask, prompts: Sequence[str], concurrency: int) -> list[ClientAnswer]:
        """Ask for every prompt, so many at a time, a thread each; a failure stands in its answer's place.

        Raises:
            PeagleError: One failed after the other.
        """
        limit = MAX_FAILURES_IN_A_ROW * concurrency
        pool = ThreadPoolExecutor(concurrency)
        try:
            return list(pool.map(functools.partial(self._try, ask, limit), range(len(prompts)), prompts))
        finally:
            # After an error, or an interrupt, nothing is asked any more.
            pool.shutdown(cancel_futures=True)

    def _try(self, ask: Ask, limit: int, index: int, prompt: str) -> ClientAnswer:
        started = time.perf_counter()
        try:
            answer = ask(index, prompt)
        except (PeagleError, OSError, http.client.HTTPException) as error:
            reason = self._reason(error, time.perf_counter() - started)
        else:
            with self._lock:
                self._in_a_row = 0
            return answer
        with self._lock:
            self._in_a_row += 1
            if self._in_a_row >= limit:
                raise PeagleError(
                    f"{self._in_a_row} requests failed one after the other, the last of them: {reason}",
                    hint="with -o the rounds before are kept, and the same call goes on behind them",
                )
        return failed_answer(reason)

    def _reason(self, error: Exception, seconds: float) -> str:
        if seconds >= self.timeout_seconds:
            return f"no whole answer within {self.timeout_seconds:g} s"
        if isinstance(error, PeagleError):
            return error.message
        return f"the server broke an answer off: {type(error).__name__}: {error}"
