"""What the served model has done since it was loaded, as Prometheus metrics on the server's own metrics port."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, Protocol

from peagle_trt.decode.request import GenerationChunk

CounterName = Literal[
    "peagle_engine_steps_total",
    "peagle_verify_steps_total",
    "peagle_draft_tokens_total",
    "peagle_accepted_draft_tokens_total",
    "peagle_output_tokens_total",
    "peagle_requests_total",
    "peagle_cancelled_requests_total",
]

DESCRIPTIONS: dict[CounterName, str] = {
    "peagle_engine_steps_total": "Steps of the decode loop; requests in flight share them",
    "peagle_verify_steps_total": "Verify steps, counted once for every request in a step",
    "peagle_draft_tokens_total": "Draft tokens that were verified",
    "peagle_accepted_draft_tokens_total": "Draft tokens that were accepted",
    "peagle_output_tokens_total": "Tokens of finished answers",
    "peagle_requests_total": "Answers that ended, cancelled ones included",
    "peagle_cancelled_requests_total": "Answers that ended because the client left",
}


class Counter(Protocol):
    """One counter of the server."""

    def increment(self, value: float) -> None:
        """Adds to it."""
        ...


class ServingCounters:
    """Counts in this process; publishes in batches, because every publication is a round trip to the server.

    Args:
        read_engine_steps: Steps of the decode loop so far.
        counters: Where the numbers go; empty publishes nothing.
    """

    def __init__(self, read_engine_steps: Callable[[], int], counters: Mapping[CounterName, Counter]) -> None:
        self._read_engine_steps = read_engine_steps
        self._counters = counters
        self._values: dict[CounterName, int] = dict.fromkeys(DESCRIPTIONS, 0)
        self._published: dict[CounterName, int] = dict.fromkeys(DESCRIPTIONS, 0)
        self._lock = threading.Lock()

    def count_answer(self, chunk: GenerationChunk) -> None:
        """Adds an answer's last chunk."""
        metrics = chunk.metrics
        with self._lock:
            self._values["peagle_requests_total"] += 1
            self._values["peagle_cancelled_requests_total"] += chunk.finish_reason == "cancelled"
            if metrics is not None:
                self._values["peagle_verify_steps_total"] += metrics.num_verify_steps
                self._values["peagle_draft_tokens_total"] += metrics.num_draft_tokens
                self._values["peagle_accepted_draft_tokens_total"] += metrics.num_accepted_tokens
                self._values["peagle_output_tokens_total"] += metrics.num_output_tokens

    def publish(self) -> None:
        """Sends what was added since the last call."""
        with self._lock:
            self._values["peagle_engine_steps_total"] = self._read_engine_steps()
            values = dict(self._values)
        for name, counter in self._counters.items():
            if added := values[name] - self._published[name]:
                counter.increment(added)
                self._published[name] = values[name]


class RegisteredCounters(Mapping[CounterName, Counter]):
    """The counters of the server this process runs in.

    Args:
        model_name: Value of the label `model`.
    """

    def __init__(self, model_name: str) -> None:
        import triton_python_backend_utils as pb_utils

        # A family must outlive its metrics, so both are kept.
        self._families = {
            name: pb_utils.MetricFamily(name=name, description=text, kind=pb_utils.MetricFamily.COUNTER)
            for name, text in DESCRIPTIONS.items()
        }
        self._counters: dict[CounterName, Counter] = {
            name: family.Metric(labels={"model": model_name}) for name, family in self._families.items()
        }

    def __getitem__(self, name: CounterName) -> Counter:
        return self._counters[name]

    def __iter__(self) -> Iterator[CounterName]:
        return iter(self._counters)

    def __len__(self) -> int:
        return len(self._counters)
