"""The page of a run: whole, quiet, readable without a picture, and made only of what was measured."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from peagle_trt.bench.report.figures import make_figures
from peagle_trt.bench.report.page import write_page
from peagle_trt.bench.report.pictures import write_pictures
from peagle_trt.bench.report.runs import read_runs
from peagle_trt.bench.report.scale import counting_axis, doubling_axis, linear_axis
from peagle_trt.bench.report.svg import draw
from peagle_trt.cli.main import run
from peagle_trt.errors import UsageError

EVIL = '<script>alert("x")</script>'


def result(draft_tokens: int, concurrency: int, **more: Any) -> dict[str, Any]:
    gain = {"speedup": 1.5, "speedup_low": 1.4, "speedup_high": 1.6} if draft_tokens else {}
    shares = [0.5**position for position in range(1, draft_tokens + 1)]
    return {
        "method": "p-eagle" if draft_tokens else "none",
        "draft_tokens": draft_tokens,
        "concurrency": concurrency,
        "prompts": "gsm8k",
        "tokens_per_second": 40.0 * concurrency + draft_tokens,
        "tokens_per_second_per_user": 40.0 / concurrency,
        "acceptance_length": 1 + sum(shares),
        "acceptance_by_position": shares,
        **gain,
        **more,
    }


def write_run(path: Path, *, settings: dict[str, Any] | None = None, **more: Any) -> Path:
    results = [result(k, count, **more) for count in (1, 4) for k in (0, 3, 5)]
    machine = {"processor": EVIL, "packages": {"onnxruntime": "1.32.0"}}
    document = {"ok": True, "results": results, "machine": machine, "settings": settings or {"max_tokens": 8}}
    path.write_text(json.dumps(document))
    return path


def charts(page: str) -> list[str]:
    return re.findall(r"<svg viewBox=\"0 0 360.*?</svg>", page, re.DOTALL)


@pytest.mark.parametrize(
    "more",
    [
        {"concurrency": 0},
        {"concurrency": -1},
        {"draft_tokens": 10**40},
        {"speedup": 1e308},
        {"tokens_per_second": -1.0},
        {"acceptance_by_context": [{"from_tokens": -5, "num_steps": 1, "tokens_a_step": 1.0}]},
    ],
)
def test_figures_that_nothing_measures_are_refused_by_name(tmp_path: Path, more: dict[str, Any]) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"results": [result(3, 1) | more]}))
    with pytest.raises(UsageError, match=next(iter(more))):
        read_runs([path])


@pytest.mark.parametrize("machine", [{"packages": ["a"]}, {"packages": "a"}, {"gpus": 7}, {"gpus": ["a"]}])
def test_a_machine_of_another_shape_is_refused(tmp_path: Path, machine: dict[str, Any]) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"results": [result(3, 1)], "machine": machine}))
    with pytest.raises(UsageError, match="is no run of `bench`"):
        read_runs([path])


def test_a_user_who_hardly_got_a_token_has_no_latency(tmp_path: Path) -> None:
    page = write_page(read_runs([write_run(tmp_path / "a.json", tokens_per_second_per_user=1e-320)]))
    assert "Latency" not in page


def test_a_folder_whose_name_is_not_utf8_has_a_page(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    folder.mkdir()
    write_run(folder / "result.json")
    assert "\\xff" in write_page(read_runs([folder])).encode().decode()


@pytest.mark.parametrize("name", ["run/result.json", "run/cells.jsonl", "run/../run/settings.json", "a.json"])
def test_a_page_never_takes_the_place_of_a_run(tmp_path: Path, name: str) -> None:
    (tmp_path / "run").mkdir()
    runs = [write_run(tmp_path / "run" / "result.json").parent, write_run(tmp_path / "a.json")]
    before = runs[1].read_bytes()
    assert run(["bench", "report", *map(str, runs), "-o", str(tmp_path / name)]) == 2
    assert runs[1].read_bytes() == (runs[0] / "result.json").read_bytes() == before


def test_a_page_shows_the_charts_and_every_figure(tmp_path: Path) -> None:
    page = write_page(read_runs([write_run(tmp_path / "a.json")]))
    ids = re.findall(r'<figure id="([^"]+)"', page)
    assert ids == ["speed-up-1", "acceptance-by-position", "latency-1"]
    for text in ("165.0", "1.50x", "1.40 to 1.60", "1.88", "onnxruntime 1.32.0", "p-eagle K=5"):
        assert text in page, text
    assert page.count('<tr class="best">') == 2


def test_a_page_needs_no_network_and_no_script(tmp_path: Path) -> None:
    page = write_page(read_runs([write_run(tmp_path / "a.json")]))
    assert not re.search(r"https?://|<script|<link|<img|@import|url\(", page)
    assert "default-src 'none'" in page


def test_what_a_file_holds_is_text_and_nothing_else(tmp_path: Path) -> None:
    page = write_page(read_runs([write_run(tmp_path / "a.json", settings={EVIL: EVIL}, prompts=EVIL)]))
    assert EVIL not in page
    assert "&lt;script&gt;" in page


def test_every_tag_is_closed(tmp_path: Path) -> None:
    class Checker(HTMLParser):
        open_tags: list[str] = []  # noqa: RUF012

        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag not in ("meta", "line", "rect"):
                self.open_tags.append(tag)

        def handle_startendtag(self, tag: str, attrs: object) -> None:
            pass

        def handle_endtag(self, tag: str) -> None:
            assert self.open_tags.pop() == tag

    checker = Checker()
    checker.feed(write_page(read_runs([write_run(tmp_path / "a.json")])))
    assert checker.open_tags == []


def test_charts_are_well_formed_and_stay_inside(tmp_path: Path) -> None:
    page = write_page(read_runs([write_run(tmp_path / "a.json"), write_run(tmp_path / "b.json")]))
    found = charts(page)
    assert len(found) == len(re.findall("<figure", page))
    for chart in found:
        root = ElementTree.fromstring(chart)
        assert root.get("role") == "img" and root.get("aria-label")
        names = ("x", "x1", "x2", "cx", "y", "y1", "cy")
        places = [float(each.get(name, "0")) for each in root.iter() for name in names]
        assert all(0 <= place <= 360 for place in places)


def test_a_bar_spans_what_the_run_says(tmp_path: Path) -> None:
    (figure, *_) = make_figures(read_runs([write_run(tmp_path / "a.json", speedup_interval=[1.2, 1.9])]))
    assert {(point.low, point.y, point.high) for line in figure.lines for point in line.points if line.style} == {
        (1.2, 1.5, 1.9)
    }
    assert draw(figure).count('class="bar') == 4


def test_cpu_time_has_a_chart_where_it_was_measured(tmp_path: Path) -> None:
    figures = make_figures(read_runs([write_run(tmp_path / "a.json", speedup_cpu=1.25)]))
    (figure,) = [each for each in figures if each.name == "cpu-speed-up-1"]
    assert {point.y for line in figure.lines for point in line.points} == {1.25}


def test_the_headline_is_the_surest_gain(tmp_path: Path) -> None:
    lucky = result(5, 1, speedup=3.0, speedup_low=0.9, speedup_high=5.0)
    sure = result(3, 1, speedup=1.4, speedup_low=1.3, speedup_high=1.5)
    (tmp_path / "a.json").write_text(json.dumps({"results": [result(0, 1), lucky, sure]}))
    assert "at best 1.40 times the baseline (1.30 to 1.50), with p-eagle K=3" in write_page(
        read_runs([tmp_path / "a.json"])
    )


def test_two_runs_are_compared(tmp_path: Path) -> None:
    runs = read_runs([write_run(tmp_path / "a.json"), write_run(tmp_path / "b.json", tokens_per_second=500.0)])
    (figure,) = [each for each in make_figures(runs) if each.name == "runs-1"]
    assert [line.title for line in figure.lines] == ["a", "b"]
    assert [point.y for point in figure.lines[0].points] == [45.0, 165.0]
    assert [point.y for point in figure.lines[1].points] == [500.0, 500.0]
    tops = {each.y_top for each in make_figures(runs) if each.name.startswith("speed-up")}
    assert tops == {1.6}


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    runs = read_runs([write_run(tmp_path / "a.json"), write_run(tmp_path / "x" / "a.json")])
    assert [each.name for each in runs] == ["a", "a #2"]


def test_axes_end_at_round_numbers() -> None:
    assert linear_axis(1.99, start=0, end=100).ticks == (0.0, 0.5, 1.0, 1.5, 2.0)
    assert linear_axis(0.0, start=0, end=100).high == 1.0
    doubling = doubling_axis([1, 2, 4], start=0, end=100)
    assert doubling.place(2) == pytest.approx(50.0)
    assert doubling.place(2) - doubling.place(1) == pytest.approx(doubling.place(4) - doubling.place(2))
    assert counting_axis([1, 3], start=0, end=30).place(2) == 15.0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not json", "is no run of"),
        ("{}", "is no run of"),
        ('{"results": []}', "holds no results"),
        ('{"results": [{"method": 3}]}', "is no run of"),
    ],
)
def test_what_is_no_run_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(UsageError, match=message):
        read_runs([tmp_path / "a.json"])


def test_an_interrupted_run_is_told_from_a_stranger(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(UsageError, match="was interrupted"):
        read_runs([tmp_path])


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_run(tmp_path / "a.json")
    assert run(["bench", "report", str(source), "-o", str(tmp_path / "page.html"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert Path(document["page"]).read_text().startswith("<!doctype html>")
    assert document["charts"] == ["speed-up-1", "acceptance-by-position", "latency-1"]


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is not None, reason="matplotlib is installed")
def test_pictures_without_matplotlib_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_run(tmp_path / "a.json")
    assert run(["bench", "report", str(source), "-o", str(tmp_path / "page.html"), "--png"]) == 3
    assert "peagle-trt[report]" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="the extra `report` is not installed")
def test_pictures_are_written(tmp_path: Path) -> None:
    figures = make_figures(read_runs([write_run(tmp_path / "a.json")]))
    paths = write_pictures(figures, tmp_path)
    assert [path.name for path in paths] == ["speed-up-1.png", "acceptance-by-position.png", "latency-1.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
