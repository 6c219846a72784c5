"""Charts as SVG inside a page: colours come from the page's style, so one drawing serves light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from peagle_trt.bench.report.figures import Figure, Line, Point
from peagle_trt.bench.report.scale import Axis, counting_axis, doubling_axis, linear_axis, tick_text

WIDTH = 360
"""Units of a drawing's width. A phone shows about as many pixels, so letters keep their size there."""
HEIGHT = 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 42, 342, 28, 206
NUM_STYLES = 8
"""Colours and markers that the page knows."""
_MARKER = 4.0


def draw(figure: Figure) -> str:
    """The `<svg>` element of a chart."""
    x_axis, y_axis = _axes(figure)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(_summary(figure), quote=True)}">',
        *_grid(figure, x_axis, y_axis),
        f'<text class="axis" x="{(_LEFT + _RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">'
        f"{escape(figure.x_title)}</text>",
        f'<text class="axis" x="4" y="14">{escape(figure.y_title)}</text>',
    ]
    if figure.mark is not None and figure.mark <= y_axis.high:
        height = y_axis.place(figure.mark)
        parts.append(f'<line class="mark" x1="{_LEFT}" x2="{_RIGHT}" y1="{height:.1f}" y2="{height:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{_RIGHT}" y="{height - 4:.1f}" text-anchor="end">{escape(figure.mark_title)}</text>'
        )
    for number, line in enumerate(figure.lines):
        # Bars of several lines at one load would hide each other.
        shift = 3.0 * (number - (len(figure.lines) - 1) / 2) if _has_bars(figure.lines) else 0.0
        parts += _line(line, x_axis, y_axis, shift)
    return "\n".join([*parts, "</svg>"])


def legend(figure: Figure) -> str:
    """The `<ul>` of a chart's lines."""
    items = [
        f'<li><svg viewBox="0 0 28 12" width="28" height="12" aria-hidden="true">'
        f'<line class="{_line_class(line)}" x1="1" x2="27" y1="6" y2="6"/>{_marker(line.style, 14, 6)}</svg>'
        f"{escape(line.title)}</li>"
        for line in figure.lines
    ]
    return f'<ul class="legend">{"".join(items)}</ul>'


def _axes(figure: Figure) -> tuple[Axis, Axis]:
    points = [point for line in figure.lines for point in line.points]
    heights = [point.y if point.high is None else max(point.y, point.high) for point in points]
    top = figure.y_top if figure.y_top is not None else max(heights)
    y_axis = linear_axis(max(top, figure.mark or 0.0), start=_BOTTOM, end=_TOP)
    xs = [point.x for point in points]
    if figure.is_x_logarithmic:
        return doubling_axis(xs, start=_LEFT, end=_RIGHT), y_axis
    if figure.x_words or (all(float(x).is_integer() for x in xs) and max(xs) <= 16):
        return counting_axis(xs, start=_LEFT, end=_RIGHT), y_axis
    return linear_axis(max(xs), start=_LEFT, end=_RIGHT, num_ticks=4), y_axis


def _grid(figure: Figure, x_axis: Axis, y_axis: Axis) -> list[str]:
    parts = []
    for tick in y_axis.ticks:
        y = y_axis.place(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick_text(tick)}</text>')
    for tick in _sparse(x_axis):
        x = x_axis.place(tick)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_BOTTOM}" y2="{_BOTTOM + 4}"/>')
        word = figure.x_words[int(tick) - 1] if figure.x_words else tick_text(tick)
        parts.append(f'<text class="tick" x="{x:.1f}" y="{_BOTTOM + 17}" text-anchor="middle">{escape(word)}</text>')
    return parts


def _sparse(axis: Axis) -> list[float]:
    """Ticks that do not run into each other."""
    kept: list[float] = []
    for tick in axis.ticks:
        if not kept or axis.place(tick) - axis.place(kept[-1]) >= 26:
            kept.append(tick)
    return kept


def _line(line: Line, x_axis: Axis, y_axis: Axis, shift: float) -> list[str]:
    places = [(x_axis.place(point.x) + shift, y_axis.place(point.y)) for point in line.points]
    parts = []
    if len(places) > 1:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline class="{_line_class(line)}" points="{path}"/>')
    for point, (x, y) in zip(line.points, places, strict=True):
        parts.append(f"<g>{_bar(point, line.style, x, y_axis)}{_marker(line.style, x, y)}")
        parts.append(f"<title>{escape(point.note)}</title></g>")
    return parts


def _bar(point: Point, style: int, x: float, y_axis: Axis) -> str:
    if point.low is None or point.high is None:
        return ""
    low, high = y_axis.place(point.low), y_axis.place(point.high)
    return (
        f'<path class="bar c{style % NUM_STYLES}" d="M{x:.1f} {low:.1f}V{high:.1f}'
        f'M{x - 3:.1f} {low:.1f}h6M{x - 3:.1f} {high:.1f}h6"/>'
    )


def _marker(style: int, x: float, y: float) -> str:
    """Circle, square, triangle or diamond, so that lines differ without their colours."""
    size = _MARKER
    name = f"dot c{style % NUM_STYLES}"
    match style % 4:
        case 0:
            return f'<circle class="{name}" cx="{x:.1f}" cy="{y:.1f}" r="{size}"/>'
        case 1:
            return (
                f'<rect class="{name}" x="{x - size:.1f}" y="{y - size:.1f}" width="{2 * size}" height="{2 * size}"/>'
            )
        case 2:
            corners = f"{x:.1f},{y - size - 1:.1f} {x + size + 1:.1f},{y + size:.1f} {x - size - 1:.1f},{y + size:.1f}"
        case _:
            corners = (
                f"{x:.1f},{y - size - 1:.1f} {x + size + 1:.1f},{y:.1f} {x:.1f},{y + size + 1:.1f} "
                f"{x - size - 1:.1f},{y:.1f}"
            )
    return f'<polygon class="{name}" points="{corners}"/>'


def _line_class(line: Line) -> str:
    return f"line c{line.style % NUM_STYLES}" + (" dashed" if line.is_dashed else "")


def _has_bars(lines: Sequence[Line]) -> bool:
    return any(point.low is not None for line in lines for point in line.points)


def _summary(figure: Figure) -> str:
    """For who cannot see it: what is drawn, and each line's ends."""
    lines = "; ".join(f"{line.title} from {line.points[0].y:.3g} to {line.points[-1].y:.3g}" for line in figure.lines)
    return f"{figure.title}: {figure.y_title} over {figure.x_title}. {lines}."
