"""The same charts as PNG files, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peagle_trt.bench.report.figures import Figure, Line
from peagle_trt.errors import MachineError
from peagle_trt.files import replacing

_COLOURS = ("#6b7280", "#0b66c3", "#c2410c", "#0f766e", "#9333ea", "#a16207", "#be185d", "#15803d")
_MARKERS = "os^D"
_SIZE_INCHES = (6.4, 4.2)
_DOTS_PER_INCH = 150


def write_pictures(figures: Sequence[Figure], folder: Path) -> list[Path]:
    """A PNG file for every chart.

    Args:
        figures: The charts.
        folder: Where to; files are named as the charts are.

    Returns:
        The files.

    Raises:
        MachineError: matplotlib is not installed, or a file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise MachineError(
            "pictures need matplotlib, which is not installed", hint="pip install 'peagle-trt[report]'"
        ) from error
    paths = []
    for figure in figures:
        canvas = Canvas(figsize=_SIZE_INCHES, dpi=_DOTS_PER_INCH, layout="constrained")
        FigureCanvasAgg(canvas)
        _draw(canvas.subplots(), figure)
        path = folder / f"{figure.name}.png"
        with replacing(path) as file:
            canvas.savefig(file, format="png")
        paths.append(path)
    return paths


def _draw(axes: Any, figure: Figure) -> None:
    for line in figure.lines:
        _draw_line(axes, line)
    axes.set(title=figure.title, xlabel=figure.x_title, ylabel=figure.y_title)
    if figure.is_x_logarithmic:
        axes.set_xscale("log", base=2)
        ticks = sorted({point.x for line in figure.lines for point in line.points})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    if figure.x_words:
        axes.set_xticks(range(1, len(figure.x_words) + 1), figure.x_words)
    axes.set_ylim(bottom=0.0, top=figure.y_top * 1.05 if figure.y_top else None)
    if figure.mark is not None:
        axes.axhline(figure.mark, color="#5a626b", linewidth=1, linestyle=":")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize="small")


def _draw_line(axes: Any, line: Line) -> None:
    points = line.points
    errors = None
    if all(point.low is not None and point.high is not None for point in points):
        # An interval need not hold the median of few values; a bar cannot be negative.
        errors = [
            [max(0.0, point.y - (point.low or 0.0)) for point in points],
            [max(0.0, (point.high or 0.0) - point.y) for point in points],
        ]
    axes.errorbar(
        [point.x for point in points],
        [point.y for point in points],
        yerr=errors,
        label=line.title,
        color=_COLOURS[line.style % len(_COLOURS)],
        marker=_MARKERS[line.style % len(_MARKERS)],
        linestyle="--" if line.is_dashed else "-",
        capsize=3,
    )
