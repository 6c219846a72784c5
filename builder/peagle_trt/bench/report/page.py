"""The page: one file of HTML with its style and its charts inside."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib import resources

from peagle_trt.bench.report.figures import Figure, make_figures
from peagle_trt.bench.report.runs import Measured, Run
from peagle_trt.bench.report.svg import draw, legend

_COLUMNS = (
    "tokens/s",
    "one user",
    "speed-up",
    "spread",
    "in CPU time",
    "acceptance",
    "first ms",
    "between, p50 / p90 / p99 ms",
    "same answer",
)
_ENERGY_COLUMN = "J a token"


def write_page(runs: Sequence[Run]) -> str:
    """The whole document.

    Args:
        runs: One, or several to compare.
    """
    title = f"Speculation measured: {', '.join(run.name for run in runs)}"
    body = [
        f"<h1>{escape(title)}</h1>",
        *(f'<p class="soft">{escape(_headline(run))}</p>' for run in runs),
        '<div class="figures">',
        *(_figure(figure) for figure in make_figures(runs)),
        "</div>",
        *(part for run in runs for part in _run(run)),
    ]
    style = resources.files("peagle_trt.bench.report").joinpath("style.css").read_text(encoding="utf-8")
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            # Nothing may be fetched, whatever a run's file holds.
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            f"<title>{escape(title)}</title>",
            f"<style>\n{style}</style></head>",
            "<body><main>",
            *body,
            "</main></body></html>\n",
        ]
    )


def _figure(figure: Figure) -> str:
    note = f'<p class="soft">{escape(figure.note)}</p>' if figure.note else ""
    return (
        f'<figure id="{figure.name}"><figcaption>{escape(figure.title)}</figcaption>\n'
        f"{draw(figure)}\n{legend(figure)}{note}</figure>"
    )


def _run(run: Run) -> list[str]:
    parts = [f"<h2>{escape(run.name)}</h2>"]
    for prompts in run.prompt_sets:
        parts.append(_table(run, prompts))
    parts.append(f"<details open><summary>Machine, versions, settings</summary>{_facts(run)}</details>")
    return parts


def _table(run: Run, prompts: str) -> str:
    items = [item for item in run.results if item.prompts == prompts]
    best = {
        load: max((item for item in items if item.concurrency == load), key=lambda item: item.tokens_per_second)
        for load in {item.concurrency for item in items}
    }
    columns = (*_COLUMNS, _ENERGY_COLUMN) if run.energy_absent is None else _COLUMNS
    header = '<th class="words">method</th><th>in flight</th>' + "".join(f"<th>{name}</th>" for name in columns)
    rows = "\n".join(_row(item, len(columns), is_best=best[item.concurrency] is item) for item in items)
    failed = "".join(f'\n<p class="soft">{escape(_failed(item))}</p>' for item in items if item.num_failed)
    return (
        f'<p>{escape(prompts)}</p>\n<div class="scroll" tabindex="0"><table><thead><tr>{header}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody></table></div>{failed}"
    )


def _failed(item: Measured) -> str:
    reasons = "; ".join(f"{count} times {reason}" for reason, count in item.failures.items())
    return f"{item.num_failed} requests failed ({item.title}, {item.concurrency} in flight): {reasons}"


def _row(item: Measured, num_columns: int, *, is_best: bool) -> str:
    gaps, spread = item.inter_token_ms, item.spread
    cells = (
        f"{item.tokens_per_second:.1f}",
        _number(item.tokens_per_second_per_user, ".1f"),
        _number(item.speedup, ".2f", "x"),
        "-" if spread is None else f"{spread[0]:.2f} to {spread[1]:.2f}",
        _number(item.speedup_cpu, ".2f", "x"),
        _number(item.acceptance_length, ".2f") if item.draft_tokens else "-",
        "-" if item.first_token_ms is None else f"{item.first_token_ms.p50:.0f}",
        "-" if gaps is None else f"{gaps.p50:.0f} / {gaps.p90:.0f} / {gaps.p99:.0f}",
        _number(item.is_equal_to_baseline, ".0%"),
        ", ".join(f"{value:.3g} ({name})" for name, value in item.energy_joules_per_token.items()) or "-",
    )[:num_columns]
    words = f'<td class="words">{escape(item.title)}</td><td>{item.concurrency}</td>'
    marked = ' class="best"' if is_best else ""
    return f"<tr{marked}>{words}{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"


def _headline(run: Run) -> str:
    gains = [item for item in run.results if item.speedup is not None]
    if not gains:
        return f"{run.name}: no baseline was measured beside it."
    # The surest, not the luckiest: by the lower end of the spread.
    best = max(gains, key=lambda item: item.spread[0] if item.spread else item.speedup or 0.0)
    spread = f" ({best.spread[0]:.2f} to {best.spread[1]:.2f})" if best.spread else ""
    return (
        f"{run.name}: at best {best.speedup:.2f} times the baseline{spread}, "
        f"with {best.title} on {best.prompts} at {best.concurrency} in flight."
    )


def _facts(run: Run) -> str:
    machine, sources = run.machine, run.sources
    commit = sources.get("commit")
    changed = ", with changes that are in no commit" if sources.get("is_changed") else ""
    packages = machine.get("packages") or {}
    facts: dict[str, object] = {
        "processor": machine.get("processor"),
        "usable cores": machine.get("num_usable_cores"),
        "system": machine.get("system"),
        "GPUs": ", ".join(str(gpu.get("name")) for gpu in machine.get("gpus") or ()) or "none",
        "peagle-trt": f"{sources.get('version', '?')}{f', commit {commit}{changed}' if commit else ''}",
        "Python": machine.get("python"),
        "packages": ", ".join(f"{name} {version}" for name, version in packages.items()),
        "energy": run.energy_absent or "measured",
        **run.settings,
    }
    rows = "".join(
        f"<dt>{escape(str(name))}</dt><dd>{escape(_text(value))}</dd>"
        for name, value in facts.items()
        if value not in (None, "", [])
    )
    return f"<dl>{rows}</dl>"


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
