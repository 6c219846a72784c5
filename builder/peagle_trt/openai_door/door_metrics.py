"""What the door counts, and `/metrics`; the model's own numbers are on the model server's metrics port."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from peagle_trt.metrics import Family, Labels, SeriesTable
from peagle_trt.metrics.families import SECONDS, TOKEN_SECONDS

if TYPE_CHECKING:
    from starlette.types import Message

ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/health", "/metrics")
OTHER_ROUTE = "other"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

FAMILIES = (
    Family(name="peagle_door_requests_total", kind="counter", text="Requests that ended", labels=("route", "status")),
    Family(name="peagle_door_requests_in_flight", kind="gauge", text="Requests that have not ended"),
    Family(name="peagle_door_output_tokens_total", kind="counter", text="Tokens of whole answers"),
    Family(
        name="peagle_door_time_to_first_byte_seconds",
        kind="histogram",
        text="From a request's arrival to its answer's first byte; in a stream, to its first token",
        labels=("route",),
        buckets=SECONDS,
    ),
    Family(
        name="peagle_door_inter_token_seconds",
        kind="histogram",
        text="Mean time between the tokens of a stream after its first one; one value a request",
        buckets=TOKEN_SECONDS,
    ),
    Family(
        name="peagle_door_request_seconds",
        kind="histogram",
        text="From a request's arrival to its end",
        labels=("route",),
        buckets=SECONDS,
    ),
)


class DoorMetrics:
    """Counts what passes the door.

    Args:
        clock: Seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._table = SeriesTable(FAMILIES)

    def text(self) -> str:
        """As Prometheus reads it."""
        return self._table.text()

    def begin(self, path: str) -> Passage:
        """A request that has come."""
        return Passage(self, self._table, path)


class Passage:
    """One request on its way through the door.

    Args:
        metrics: Whose clock it goes by.
        table: Where it is counted.
        path: What it asks for.
    """

    def __init__(self, metrics: DoorMetrics, table: SeriesTable, path: str) -> None:
        self._clock = metrics.clock
        self._table = table
        self._route: Labels = (("route", _route(path)),)
        self._began_at = self._clock()
        self._first_at: float | None = None
        self._is_stream = False
        self.status = 0
        table.add("peagle_door_requests_in_flight")

    @property
    def seconds(self) -> float:
        """Since it came."""
        return self._clock() - self._began_at

    def see(self, message: Message) -> None:
        """Looks at what goes to the client."""
        if message["type"] != "http.response.start":
            return
        self.status = int(message["status"])
        self._first_at = self._clock()
        self._is_stream = any(value.startswith(b"text/event-stream") for _, value in message["headers"])

    def end(self, num_tokens: int) -> None:
        """Counts it.

        Args:
            num_tokens: Tokens of its answer; 0 where there is none.
        """
        now = self._clock()
        table = self._table
        table.add("peagle_door_requests_in_flight", -1)
        # A client that left before anything was sent has no status; nginx's number for it.
        table.add("peagle_door_requests_total", labels=(*self._route, ("status", str(self.status or 499))))
        table.add("peagle_door_output_tokens_total", num_tokens)
        table.observe("peagle_door_request_seconds", now - self._began_at, self._route)
        if self._first_at is None:
            return
        table.observe("peagle_door_time_to_first_byte_seconds", self._first_at - self._began_at, self._route)
        if self._is_stream and num_tokens > 1:
            table.observe("peagle_door_inter_token_seconds", (now - self._first_at) / (num_tokens - 1))


def _route(path: str) -> str:
    """A path's name; paths that clients make up must not each become a series."""
    if path.startswith("/v1/models/"):
        return "/v1/models"
    return path if path in ROUTES else OTHER_ROUTE
