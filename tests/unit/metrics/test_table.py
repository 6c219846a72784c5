"""Numbers in this process, and the text that Prometheus reads."""

from __future__ import annotations

import pytest

from peagle_trt.metrics import Family, SeriesTable

FAMILIES = (
    Family(name="asked_total", kind="counter", text="Requests", labels=("route",)),
    Family(name="open", kind="gauge", text="Now"),
    Family(name="took_seconds", kind="histogram", text="Time", buckets=(0.1, 1.0)),
)


@pytest.fixture
def table() -> SeriesTable:
    return SeriesTable(FAMILIES)


def test_a_counter_has_a_line_for_each_of_its_labels(table: SeriesTable) -> None:
    for route in ("/a", "/b", "/a"):
        table.add("asked_total", labels=(("route", route),))
    assert 'asked_total{route="/a"} 2\nasked_total{route="/b"} 1\n' in table.text()


def test_a_histogram_counts_up_to_each_edge_and_a_value_on_an_edge_is_below_it(table: SeriesTable) -> None:
    for value in (0.05, 0.1, 0.5, 7.0):
        table.observe("took_seconds", value)
    lines = [line for line in table.text().splitlines() if line.startswith("took_seconds")]
    assert lines == [
        'took_seconds_bucket{le="0.1"} 2',
        'took_seconds_bucket{le="1"} 3',
        'took_seconds_bucket{le="+Inf"} 4',
        "took_seconds_sum 7.65",
        "took_seconds_count 4",
    ]


def test_a_family_without_labels_is_there_from_the_start(table: SeriesTable) -> None:
    assert "# HELP open Now\n# TYPE open gauge\nopen 0\n" in table.text()


def test_a_labels_value_cannot_break_out_of_its_line(table: SeriesTable) -> None:
    table.add("asked_total", labels=(("route", 'a"\n\\'),))
    assert 'asked_total{route="a\\"\\n\\\\"} 1\n' in table.text()


def test_a_label_that_was_not_declared_is_refused(table: SeriesTable) -> None:
    with pytest.raises(ValueError, match="labels"):
        table.add("open", labels=(("route", "/a"),))


def test_a_histogram_is_asked_for_by_its_three_names() -> None:
    assert list(FAMILIES[2].series_names()) == ["took_seconds_bucket", "took_seconds_sum", "took_seconds_count"]
