"""The metrics of the server this process runs in."""

from __future__ import annotations

from typing import Any

from peagle_trt.deploy.hosting.families import FAMILIES
from peagle_trt.errors import MachineError
from peagle_trt.metrics.families import Family, Labels


class RegisteredFamilies:
    """All families, registered with the server; one without labels is there from the start.

    Args:
        model_name: Value of the label `model`.
        model_version: Value of the label `version`.

    Raises:
        MachineError: The server is too old.

    Source: Triton's python backend, "custom metrics"; histograms came with 24.10.
    """

    def __init__(self, model_name: str, model_version: str) -> None:
        import triton_python_backend_utils as pb_utils

        self._shared = {"model": model_name, "version": model_version}
        if not hasattr(pb_utils.MetricFamily, "HISTOGRAM"):
            raise MachineError("this server's python backend has no histograms", hint="use container 24.10 or newer")
        kinds = {
            "counter": pb_utils.MetricFamily.COUNTER,
            "gauge": pb_utils.MetricFamily.GAUGE,
            "histogram": pb_utils.MetricFamily.HISTOGRAM,
        }
        self._declared = {family.name: family for family in FAMILIES}
        # A family must outlive its metrics, so both are kept.
        self._families = {
            family.name: pb_utils.MetricFamily(name=family.name, description=family.text, kind=kinds[family.kind])
            for family in FAMILIES
        }
        self._series: dict[tuple[str, Labels], Any] = {
            (family.name, ()): self._register(family, ()) for family in FAMILIES if not family.labels
        }

    def increment(self, name: str, labels: Labels, value: float) -> None:
        """Adds to a counter."""
        self._of(name, labels).increment(value)

    def set(self, name: str, labels: Labels, value: float) -> None:
        """Sets a gauge."""
        self._of(name, labels).set(value)

    def observe(self, name: str, labels: Labels, value: float) -> None:
        """Counts a value in a histogram."""
        self._of(name, labels).observe(value)

    def _of(self, name: str, labels: Labels) -> Any:
        if (name, labels) not in self._series:
            self._series[name, labels] = self._register(self._declared[name], labels)
        return self._series[name, labels]

    def _register(self, family: Family, labels: Labels) -> Any:
        more = {"buckets": list(family.buckets)} if family.kind == "histogram" else {}
        return self._families[family.name].Metric(labels=self._shared | dict(labels), **more)
