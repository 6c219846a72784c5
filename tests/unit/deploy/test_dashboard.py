"""The dashboard that ships with the project."""

from __future__ import annotations

from peagle_trt.deploy.hosting.families import FAMILIES
from peagle_trt.openai_door.door_metrics import FAMILIES as DOOR_FAMILIES
from tests.support.dashboards import dashboard, named_metrics, queries

DECLARED = {name for family in (*FAMILIES, *DOOR_FAMILIES) for name in family.series_names()}
OF_TRITON = {"nv_inference_request_success", "nv_inference_request_failure"}
"""Checked against a real server in tests/integration/triton/test_metrics.py."""


def test_every_metric_of_the_dashboard_exists() -> None:
    assert named_metrics() - DECLARED - OF_TRITON == set()


def test_every_family_has_a_place_on_the_dashboard() -> None:
    shown = named_metrics()
    hidden = {family.name for family in (*FAMILIES, *DOOR_FAMILIES) if shown.isdisjoint(family.series_names())}
    assert hidden == set()


def test_queries_close_their_brackets() -> None:
    for query in queries():
        assert [query.count(left) - query.count(right) for left, right in ("()", "[]", "{}")] == [0, 0, 0]


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) == 23
