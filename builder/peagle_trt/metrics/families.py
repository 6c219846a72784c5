"""What a family of Prometheus metrics is: declared as data, so that tables, dashboards and tests read one source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Labels = tuple[tuple[str, str], ...]
"""Names and values, in the order of the family's labels."""

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper edges for a whole answer or the wait for its start, from a small model alone to a large one under load."""
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0)
"""Upper edges for the time between two tokens; 0.05 is what reading aloud needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family.

    Attributes:
        name: Name on the wire; counters end in `_total`.
        kind: What its numbers do.
        text: One sentence for people.
        labels: Names of its labels, beside those that all families of a server share.
        buckets: Upper edges of a histogram, without infinity.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    def series_names(self) -> Iterator[str]:
        """Names that a query may use."""
        if self.kind != "histogram":
            yield self.name
            return
        for suffix in ("bucket", "sum", "count"):
            yield f"{self.name}_{suffix}"
