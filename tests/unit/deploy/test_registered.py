"""Families as they are registered with a server."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from peagle_trt.deploy.hosting.families import FAMILIES
from peagle_trt.deploy.hosting.registered import RegisteredFamilies
from peagle_trt.errors import MachineError


class Family:
    """A family of the server."""

    COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
    made: dict[tuple[str, str], dict[str, Any]]

    def __init__(self, name: str, description: str, kind: str) -> None:
        self.name, self.kind = name, kind

    def Metric(self, labels: dict[str, str], **more: Any) -> Any:
        self.made[self.name, labels.get("position", "")] = more | {"labels": labels, "kind": self.kind}
        return type("Metric", (), {"increment": lambda self, value: None})()


class OldFamily:
    """One of a server before 24.10."""

    COUNTER, GAUGE = "counter", "gauge"


def serve_with(monkeypatch: pytest.MonkeyPatch, family: type) -> None:
    module = ModuleType("triton_python_backend_utils")
    module.MetricFamily = family  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", module)


def test_families_are_there_from_the_start_and_labelled_series_from_their_first_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serve_with(monkeypatch, Family)
    Family.made = {}
    registered = RegisteredFamilies("peagle", "2")
    assert {name for name, _ in Family.made} == {family.name for family in FAMILIES if not family.labels}
    registered.increment("peagle_accepted_by_position_total", (("position", "1"),), 3)
    series = Family.made["peagle_accepted_by_position_total", "1"]
    assert series["labels"] == {"model": "peagle", "version": "2", "position": "1"}
    assert Family.made["peagle_request_seconds", ""]["buckets"]


def test_a_server_without_histograms_is_refused_with_the_release_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    serve_with(monkeypatch, OldFamily)
    with pytest.raises(MachineError, match="no histograms") as caught:
        RegisteredFamilies("peagle", "1")
    assert "24.10" in str(caught.value.hint)
