"""What the charts show, apart from how: titles, axes, and lines of points with their spread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from peagle_trt.bench.report.runs import Measured, Run
from peagle_trt.bench.report.scale import tick_text

SLOWEST = 1e-6
"""Tokens a second that have a latency; fewer were hardly measured, and their inverse has no place on an axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point of a line.

    Attributes:
        x: Where.
        y: Where.
        low: Lower end of its error bar, or None.
        high: Upper end, or None.
        note: What a reader who points at it is told, and what is written beside it where `is_labelled`.
        is_labelled: Write the note beside it.
    """

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    note: str = ""
    is_labelled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Points that belong together.

    Attributes:
        title: In the legend.
        points: From left to right.
        style: Number of its colour and marker; lines of one style in two runs are told apart by `is_dashed`.
        is_dashed: Draw it dashed.
    """

    title: str
    points: tuple[Point, ...]
    style: int
    is_dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A chart.

    Attributes:
        name: For files and anchors.
        title: Above it.
        x_title: Under its x axis.
        y_title: Above its y axis.
        lines: What it shows.
        is_x_logarithmic: Doublings are equally wide.
        x_words: What is written at x = 1, 2, ...; empty for the numbers themselves.
        mark: A height that means "neither gain nor loss", or None.
        mark_title: What is written at the mark.
        y_top: Top of the y axis, or None to fit the points; equal for charts that are compared.
        note: A sentence under it.
    """

    name: str
    title: str
    x_title: str
    y_title: str
    lines: tuple[Line, ...]
    is_x_logarithmic: bool = False
    x_words: tuple[str, ...] = ()
    mark: float | None = None
    mark_title: str = ""
    y_top: float | None = None
    note: str = ""


def make_figures(runs: Sequence[Run]) -> list[Figure]:
    """All charts of a page."""
    pairs = [(run, prompts) for run in runs for prompts in run.prompt_sets]
    figures = _comparisons(runs) if len(runs) > 1 else []
    figures += [*_speedups(pairs, len(runs)), *_cpu_speedups(pairs, len(runs)), *_positions(runs), *_contexts(runs)]
    figures += _latencies(pairs, len(runs))
    return [figure for figure in figures if figure.lines]


def _speedups(pairs: Sequence[tuple[Run, str]], num_runs: int) -> list[Figure]:
    return _with_equal_tops(
        [
            Figure(
                name=f"speed-up-{number + 1}",
                title=f"Speed-up, {_named(run, prompts, num_runs)}",
                x_title="requests in flight",
                y_title=f"times {_baseline(run)}",
                lines=_lines_by_method(run, prompts, _speedup_point),
                is_x_logarithmic=True,
                mark=1.0,
                mark_title="no gain",
                note=_bars(run),
            )
            for number, (run, prompts) in enumerate(pairs)
        ]
    )


def _speedup_point(item: Measured) -> Point | None:
    if item.speedup is None:
        return None
    low, high = item.spread or (None, None)
    note = f"{item.title}, {item.concurrency} in flight: {item.speedup:.2f}x"
    return Point(x=item.concurrency, y=item.speedup, low=low, high=high, note=note)


def _cpu_speedups(pairs: Sequence[tuple[Run, str]], num_runs: int) -> list[Figure]:
    """What other programs of the machine hardly touch; only where the work was this process's."""
    return _with_equal_tops(
        [
            Figure(
                name=f"cpu-speed-up-{number + 1}",
                title=f"Speed-up in CPU time, {_named(run, prompts, num_runs)}",
                x_title="requests in flight",
                y_title=f"times {_baseline(run)}",
                lines=_lines_by_method(run, prompts, _cpu_speedup_point),
                is_x_logarithmic=True,
                mark=1.0,
                mark_title="no gain",
                note="On a machine that others use, read this one. Bars, where there are five rounds: 95 % interval.",
            )
            for number, (run, prompts) in enumerate(pairs)
        ]
    )


def _cpu_speedup_point(item: Measured) -> Point | None:
    if item.speedup_cpu is None:
        return None
    low, high = item.speedup_cpu_interval or (None, None)
    note = f"{item.title}, {item.concurrency} in flight: {item.speedup_cpu:.2f}x"
    return Point(x=item.concurrency, y=item.speedup_cpu, low=low, high=high, note=note)


def _positions(runs: Sequence[Run]) -> list[Figure]:
    lines = []
    names = list(dict.fromkeys(prompts for run in runs for prompts in run.prompt_sets))
    for run_number, run in enumerate(runs):
        for prompts in run.prompt_sets:
            item = _longest(run, prompts)
            if item is None:
                continue
            shares = enumerate(item.acceptance_by_position, start=1)
            lines.append(
                Line(
                    title=f"{prompts} ({run.name})" if len(runs) > 1 else prompts,
                    points=tuple(
                        Point(x=position, y=share, note=f"{prompts}, position {position}: {share:.3f}")
                        for position, share in shares
                    ),
                    style=names.index(prompts),
                    is_dashed=run_number > 0,
                )
            )
    return [
        Figure(
            name="acceptance-by-position",
            title="Accepted drafts by position",
            x_title="position of the draft",
            y_title="share of verify steps",
            lines=tuple(lines),
            y_top=1.0,
            note="Of the largest K that was measured; the acceptance length is 1 plus the sum of the shares.",
        )
    ]


def _contexts(runs: Sequence[Run]) -> list[Figure]:
    lines = []
    names = list(dict.fromkeys(prompts for run in runs for prompts in run.prompt_sets))
    edges = sorted({row.from_tokens for run in runs for item in run.results for row in item.acceptance_by_context})
    for run_number, run in enumerate(runs):
        for prompts in run.prompt_sets:
            item = _longest(run, prompts)
            if item is None or len(item.acceptance_by_context) < 2:
                continue
            lines.append(
                Line(
                    title=f"{prompts} ({run.name})" if len(runs) > 1 else prompts,
                    points=tuple(
                        Point(
                            x=edges.index(row.from_tokens) + 1,
                            y=row.tokens_a_step,
                            note=f"{prompts}, from {row.from_tokens} tokens on: {row.tokens_a_step:.2f} "
                            f"in {row.num_steps} steps",
                        )
                        for row in item.acceptance_by_context
                    ),
                    style=names.index(prompts),
                    is_dashed=run_number > 0,
                )
            )
    return [
        Figure(
            name="acceptance-by-context",
            title="Tokens a step by context length",
            x_title="tokens present, at least",
            y_title="tokens a step",
            lines=tuple(lines),
            x_words=tuple(tick_text(edge) for edge in edges),
        )
    ]


def _latencies(pairs: Sequence[tuple[Run, str]], num_runs: int) -> list[Figure]:
    found = []
    for number, (run, prompts) in enumerate(pairs):
        lines = _lines_by_method(run, prompts, _latency_point)
        found.append(
            Figure(
                name=f"latency-{number + 1}",
                title=f"Latency against throughput, {_named(run, prompts, num_runs)}",
                x_title="tokens a second, all requests",
                y_title="milliseconds a token, one user",
                lines=lines,
                note="Right and low is better. Each line goes through the numbers of requests in flight.",
            )
        )
    return _with_equal_tops(found)


def _latency_point(item: Measured) -> Point | None:
    rate = item.tokens_per_second_per_user or 0.0
    if rate < SLOWEST:
        return None
    latency = 1e3 / rate
    return Point(
        x=item.tokens_per_second,
        y=latency,
        note=f"{item.title}, {item.concurrency} in flight: {item.tokens_per_second:.1f} tokens/s, {latency:.1f} ms",
    )


def _comparisons(runs: Sequence[Run]) -> list[Figure]:
    """Of every run the best method at each load."""
    shared = [name for name in runs[0].prompt_sets if all(name in run.prompt_sets for run in runs)]
    return [
        Figure(
            name=f"runs-{number + 1}",
            title=f"Best of each run, {prompts}",
            x_title="requests in flight",
            y_title="tokens a second, all requests",
            lines=tuple(
                Line(
                    title=run.name,
                    points=tuple(
                        Point(
                            x=best.concurrency,
                            y=best.tokens_per_second,
                            note=f"{run.name}: {best.title}, {best.tokens_per_second:.1f} tokens/s",
                        )
                        for best in _best_at_each_load(run, prompts)
                    ),
                    style=style,
                    is_dashed=style > 0,
                )
                for style, run in enumerate(runs)
            ),
            is_x_logarithmic=True,
            note="The fastest method of a run at each load, plain decoding among them.",
        )
        for number, prompts in enumerate(shared)
    ]


def _best_at_each_load(run: Run, prompts: str) -> list[Measured]:
    items = [item for item in run.results if item.prompts == prompts]
    loads = sorted({item.concurrency for item in items})
    return [
        max((item for item in items if item.concurrency == load), key=lambda item: item.tokens_per_second)
        for load in loads
    ]


def _lines_by_method(run: Run, prompts: str, point: Callable[[Measured], Point | None]) -> tuple[Line, ...]:
    # A method has one colour on the whole page.
    titles = list(dict.fromkeys(item.title for item in run.results))
    lines = []
    for style, title in enumerate(titles):
        items = [item for item in run.results if item.prompts == prompts and item.title == title]
        points = [found for item in sorted(items, key=_load) if (found := point(item)) is not None]
        if points:
            lines.append(Line(title=title, points=tuple(points), style=style))
    return tuple(lines)


def _load(item: Measured) -> int:
    return item.concurrency


def _longest(run: Run, prompts: str) -> Measured | None:
    """The result with most positions, at the smallest load."""
    items = [item for item in run.results if item.prompts == prompts and item.acceptance_by_position]
    return max(items, key=lambda item: (len(item.acceptance_by_position), -item.concurrency), default=None)


def _with_equal_tops(figures: Sequence[Figure]) -> list[Figure]:
    """Charts beside each other are compared by eye."""
    heights = [height for figure in figures for height in _heights(figure.lines)]
    if not heights:
        return list(figures)
    return [replace(figure, y_top=max(heights)) for figure in figures]


def _heights(lines: Iterable[Line]) -> list[float]:
    return [point.y if point.high is None else point.high for line in lines for point in line.points]


def _named(run: Run, prompts: str, num_runs: int) -> str:
    return f"{prompts} ({run.name})" if num_runs > 1 else prompts


def _baseline(run: Run) -> str:
    return "plain decoding" if run.settings.get("baseline", "none") == "none" else str(run.settings["baseline"])


def _bars(run: Run) -> str:
    if all(item.speedup_interval is not None for item in run.results if item.speedup is not None):
        return "Median over rounds of the ratio within a round; bars: 95 % interval, bootstrap over rounds."
    return "Median over rounds of the ratio within a round; bars: 95 % interval, or the middle half of few rounds."
