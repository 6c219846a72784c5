"""Reads what a Grafana dashboard asks Prometheus for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "peagle-trt.json"
_METRIC = re.compile(r"\b(?:peagle|nv)_[a-z0-9_]+")


def dashboard() -> dict[str, Any]:
    """The document."""
    document: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return document


def queries() -> list[str]:
    """Every query of every panel and variable."""
    panels = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]
    return panels + [variable["query"]["query"] for variable in dashboard()["templating"]["list"][1:]]


def named_metrics() -> set[str]:
    """Metrics that the queries name."""
    return {name for query in queries() for name in _METRIC.findall(query)}
