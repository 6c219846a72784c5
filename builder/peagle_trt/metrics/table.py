"""Numbers of families in this process, and the text form that Prometheus reads.

Source: Prometheus text-based exposition format 0.0.4.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from peagle_trt.metrics.families import Family, Labels


@dataclass(slots=True)
class _Series:
    """One line's number, or a histogram's: counts by bucket, the last one for what exceeds every edge."""

    value: float = 0.0
    counts: list[int] = field(default_factory=list)


class SeriesTable:
    """Numbers of many series; may be used from any thread.

    Args:
        families: All families, in the order of the text.
    """

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = {family.name: family for family in families}
        self._series: dict[tuple[str, Labels], _Series] = {}
        self._lock = threading.Lock()

    def add(self, name: str, value: float = 1.0, labels: Labels = ()) -> None:
        """Adds to a counter or a gauge."""
        with self._lock:
            self._of(name, labels).value += value

    def observe(self, name: str, value: float, labels: Labels = ()) -> None:
        """Counts a value in a histogram."""
        family = self._families[name]
        with self._lock:
            series = self._of(name, labels)
            series.value += value
            series.counts[bisect_left(family.buckets, value)] += 1

    def text(self) -> str:
        """Everything, as Prometheus reads it."""
        with self._lock:
            lines = [line for family in self._families.values() for line in self._lines(family)]
        return "\n".join(lines) + "\n"

    def _of(self, name: str, labels: Labels) -> _Series:
        family = self._families[name]
        if tuple(label for label, _ in labels) != family.labels:
            raise ValueError(f"`{name}` has the labels {family.labels}, not {labels}")
        if (name, labels) not in self._series:
            self._series[name, labels] = _Series(counts=[0] * (len(family.buckets) + 1))
        return self._series[name, labels]

    def _lines(self, family: Family) -> Iterator[str]:
        yield f"# HELP {family.name} {family.text}"
        yield f"# TYPE {family.name} {family.kind}"
        if not family.labels:
            self._of(family.name, ())
        for (name, labels), series in self._series.items():
            if name != family.name:
                continue
            if family.kind == "histogram":
                yield from _histogram_lines(family, labels, series)
            else:
                yield f"{name}{_braces(labels)} {series.value:.10g}"


def _histogram_lines(family: Family, labels: Labels, series: _Series) -> Iterator[str]:
    total = 0
    for edge, count in zip((*family.buckets, float("inf")), series.counts, strict=True):
        total += count
        text = "+Inf" if edge == float("inf") else f"{edge:g}"
        yield f"{family.name}_bucket{_braces((*labels, ('le', text)))} {total}"
    yield f"{family.name}_sum{_braces(labels)} {series.value:.10g}"
    yield f"{family.name}_count{_braces(labels)} {total}"


def _braces(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
