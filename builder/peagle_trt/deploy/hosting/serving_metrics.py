"""What the served model has done and is doing, counted in this process and published from time to time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from peagle_trt.decode.load import LoopLoad
from peagle_trt.decode.loop_statistics import LoopStatistics
from peagle_trt.decode.request import GenerationChunk, RequestMetrics
from peagle_trt.metrics.families import Labels

PUBLICATION_SECONDS = 0.2
"""Between two publications: each changed series costs a round trip to the server, about 0.3 ms."""
MAX_OBSERVATIONS = 10_000
"""Values of one histogram that may wait for a publication; beyond it a server hangs, and they are dropped."""


@dataclass(frozen=True, slots=True)
class LoopReading:
    """The loop's counters and its load."""

    statistics: LoopStatistics
    load: LoopLoad


class Publisher(Protocol):
    """Where numbers go."""

    def increment(self, name: str, labels: Labels, value: float) -> None:
        """Adds to a counter."""
        ...

    def set(self, name: str, labels: Labels, value: float) -> None:
        """Sets a gauge."""
        ...

    def observe(self, name: str, labels: Labels, value: float) -> None:
        """Counts a value in a histogram."""
        ...


class ServingMetrics:
    """Counts answers as they end; publishes in batches.

    Args:
        read: Looks at the loop; None for a host without one.
        publisher: Where the numbers go.
        clock: Seconds.
    """

    def __init__(
        self,
        read: Callable[[], LoopReading] | None,
        publisher: Publisher,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._publisher = publisher
        self._clock = clock
        self._publish_at = clock()
        self._totals: dict[tuple[str, Labels], float] = {}
        self._published: dict[tuple[str, Labels], float] = {}
        self._levels: dict[str, float] = {}
        self._observations: list[tuple[str, float]] = []
        self._lock = threading.Lock()

    def count_answer(self, chunk: GenerationChunk) -> None:
        """Adds an answer's last chunk."""
        with self._lock:
            self._add("peagle_requests_total", 1)
            self._add("peagle_cancelled_requests_total", chunk.finish_reason == "cancelled")
            if chunk.metrics is not None:
                self._add("peagle_failed_requests_total", chunk.finish_reason == "error")
                self._count(chunk.metrics)

    def publish(self) -> None:
        """Sends what has changed, unless that was done a moment ago."""
        if self._clock() < self._publish_at:
            return
        self._publish_at = self._clock() + PUBLICATION_SECONDS
        reading = self._read() if self._read is not None else None
        with self._lock:
            if reading is not None:
                self._take(reading.statistics)
            totals = dict(self._totals)
            observations, self._observations = self._observations, []
        for (name, labels), value in totals.items():
            if added := value - self._published.get((name, labels), 0):
                self._publisher.increment(name, labels, added)
                self._published[name, labels] = value
        for name, value in observations:
            self._publisher.observe(name, (), value)
        for name, value in _levels(reading.load).items() if reading is not None else ():
            if self._levels.get(name) != value:
                self._publisher.set(name, (), value)
                self._levels[name] = value

    def _count(self, metrics: RequestMetrics) -> None:
        self._add("peagle_verify_steps_total", metrics.num_verify_steps)
        self._add("peagle_draft_tokens_total", metrics.num_draft_tokens)
        self._add("peagle_accepted_draft_tokens_total", metrics.num_accepted_tokens)
        self._add("peagle_looked_up_tokens_total", metrics.num_looked_up_tokens)
        self._add("peagle_input_tokens_total", metrics.num_prompt_tokens)
        self._add("peagle_output_tokens_total", metrics.num_output_tokens)
        for position, count in enumerate(metrics.accepted_by_position, start=1):
            self._add("peagle_accepted_by_position_total", count, (("position", str(position)),))
        if metrics.num_output_tokens:
            self._observe("peagle_time_to_first_token_seconds", metrics.time_to_first_token_seconds)
            self._observe("peagle_request_seconds", metrics.total_seconds)
        if metrics.num_output_tokens > 1:
            seconds = metrics.total_seconds - metrics.time_to_first_token_seconds
            self._observe("peagle_inter_token_seconds", seconds / (metrics.num_output_tokens - 1))

    def _take(self, statistics: LoopStatistics) -> None:
        self._totals["peagle_engine_steps_total", ()] = statistics.num_steps
        self._totals["peagle_drafter_passes_total", ()] = statistics.num_drafter_passes
        self._totals["peagle_generated_tokens_total", ()] = statistics.num_output_tokens
        self._totals["peagle_reused_input_tokens_total", ()] = statistics.num_reused_tokens

    def _add(self, name: str, value: float, labels: Labels = ()) -> None:
        self._totals[name, labels] = self._totals.get((name, labels), 0) + value

    def _observe(self, name: str, value: float) -> None:
        if len(self._observations) < MAX_OBSERVATIONS:
            self._observations.append((name, value))


def _levels(load: LoopLoad) -> dict[str, float]:
    return {
        "peagle_running_requests": load.num_running,
        "peagle_waiting_requests": load.num_waiting,
        "peagle_slots": load.num_slots,
        "peagle_speculation_on": float(load.num_drafting > 0),
        "peagle_draft_tokens_in_use": load.num_planned_drafts / load.num_drafting if load.num_drafting else 0.0,
        "peagle_cache_used_tokens": load.num_cached_tokens,
        "peagle_cache_capacity_tokens": load.cache_tokens,
    }
