"""A picture of a training: loss and acceptance over its steps, as an SVG file that any browser shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from peagle_trt.files import write_text
from peagle_trt.train.run_state import read_metrics

WIDTH, HEIGHT, MARGIN = 760, 260, 56
# Points a line; more would not be seen.
MOST_POINTS = 400
COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One curve: its name and its points, (step, value)."""

    name: str
    points: Sequence[tuple[float, float]]


def draw_curves(folder: Path, path: Path) -> None:
    """Draw what the metrics of a run hold: loss, agreement by depth, acceptance length.

    Args:
        folder: The run's folder.
        path: The picture to write; nothing is written before the first step.
    """
    lines = read_metrics(folder)
    steps = [line for line in lines if "loss" in line]
    if not steps:
        return
    num_depths = max(len(line["agreement"]) for line in steps)
    evaluated = [line for line in lines if "acceptance_length" in line]
    panels = [
        ("loss", [Line(name="loss", points=_smooth(steps, lambda line: line["loss"]))]),
        (
            "share of rows where the drafter's first choice is the target's, by depth",
            [
                Line(name=f"depth {depth}", points=_smooth(steps, lambda line, depth=depth: _at(line, depth)))
                for depth in range(num_depths)
            ],
        ),
        (
            "acceptance length on held-out prompts",
            [Line(name="acceptance", points=[(line["step"], line["acceptance_length"]) for line in evaluated])],
        ),
    ]
    drawn = [panel for panel in panels if any(line.points for line in panel[1])]
    body = "".join(_panel(title, curves, place * HEIGHT) for place, (title, curves) in enumerate(drawn))
    write_text(
        path,
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT * len(drawn)}" '
        f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>{body}</svg>\n',
    )


def _at(line: dict[str, Any], depth: int) -> float:
    share = line["agreement"][depth]
    return float("nan") if share is None else float(share)


def _smooth(steps: Sequence[dict[str, Any]], value: Any) -> list[tuple[float, float]]:
    """Means over equal stretches of steps; values that are no number are left out."""
    stretch = -(-len(steps) // MOST_POINTS)
    points = []
    for start in range(0, len(steps), stretch):
        part = [(line["step"], value(line)) for line in steps[start : start + stretch]]
        known = [(step, number) for step, number in part if number == number]
        if known:
            points.append((sum(step for step, _ in known) / len(known), sum(n for _, n in known) / len(known)))
    return points


def _panel(title: str, lines: Sequence[Line], top: float) -> str:
    points = [point for line in lines for point in line.points]
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    width, height = WIDTH - 2 * MARGIN - 70, HEIGHT - 2 * MARGIN + 20

    def place(x: float, y: float) -> str:
        across = MARGIN + width * (x - left) / max(right - left, 1e-9)
        down = top + MARGIN - 10 + height * (1.0 - (y - low) / max(high - low, 1e-9))
        return f"{across:.1f},{down:.1f}"

    bottom = top + MARGIN - 10 + height
    parts = [
        f'<text x="{MARGIN}" y="{top + 24}" font-weight="bold">{escape(title)}</text>',
        f'<path d="M{MARGIN},{top + MARGIN - 10} V{bottom} H{MARGIN + width}" fill="none" stroke="black"/>',
        f'<text x="{MARGIN - 6}" y="{bottom}" text-anchor="end">{low:.3g}</text>',
        f'<text x="{MARGIN - 6}" y="{top + MARGIN}" text-anchor="end">{high:.3g}</text>',
        f'<text x="{MARGIN}" y="{bottom + 16}">step {left:.0f}</text>',
        f'<text x="{MARGIN + width}" y="{bottom + 16}" text-anchor="end">{right:.0f}</text>',
    ]
    for number, line in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        drawn = " ".join(place(x, y) for x, y in line.points)
        mark = top + MARGIN + 14 * number
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(f'<text x="{MARGIN + width + 8}" y="{mark:.0f}" fill="{colour}">{escape(line.name)}</text>')
    return "".join(parts)
