"""The tables and the plot of `measure_quantization`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

Results = Mapping[str, Mapping[str, Any]]
_WORST = 10


def table(results: Results) -> str:
    """One row a recipe, in Markdown."""
    head = [
        "recipe", "weight error, median", "largest", "KL, nats", "top-1 agreement", "perplexity", "GSM8K right",
        "as fp32", "acceptance length, target quantized", "drafter quantized", "both",
    ]  # fmt: skip
    lines = [_row(head), _row(["---"] * len(head))]
    for name, found in results.items():
        errors, answers = found.get("weight_errors", {}), found["answers"]
        count = len(answers["numbers"])
        lines.append(
            _row([
                name,
                f"{median(errors.values()):.4f}" if errors else "",
                f"{max(errors.values()):.4f}" if errors else "",
                f"{answers['divergence']:.4f}",
                f"{answers['top1_agreement']:.1%}",
                f"{answers['perplexity']:.3f}",
                f"{answers['num_right']} of {count}",
                f"{answers['num_same']} of {count}",
                _lengths(found.get("drafts_target_only")),
                _lengths(found.get("drafts_drafter_only")),
                _lengths(found.get("drafts")),
            ])
        )  # fmt: skip
    return "\n".join(lines) + "\n"


def error_table(results: Results) -> str:
    """The worst modules of every recipe, in Markdown."""
    lines = [_row(["recipe", "module", "relative error of its weight"]), _row(["---"] * 3)]
    for name, found in results.items():
        for kind in ("weight_errors", "drafter_weight_errors"):
            worst = sorted(found.get(kind, {}).items(), key=lambda item: -item[1])[:_WORST]
            model = "drafter: " if kind.startswith("drafter") else ""
            lines += [_row([name, f"{model}`{module}`", f"{error:.4f}"]) for module, error in worst]
    return "\n".join(lines) + "\n"


def plot(results: Results, path: Path) -> None:
    """Divergence and acceptance length of every recipe as bars; without matplotlib it says so and draws nothing."""
    if find_spec("matplotlib") is None:
        print("no plot: matplotlib is not installed", file=sys.stderr)
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [name for name in results if "weight_errors" in results[name]]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 0.5 * len(names) + 2), sharey=True)
    left.barh(names, [results[name]["answers"]["divergence"] for name in names])
    left.set_xlabel("KL divergence from fp32, nats a token")
    plain = next((found["drafts"] for found in results.values() if "weight_errors" not in found), {})
    kinds = {"target": "drafts_target_only", "drafter": "drafts_drafter_only", "both": "drafts"}
    for offset, (label, key) in zip((-0.27, 0.0, 0.27), kinds.items(), strict=True):
        means = [_mean(results[name][key]) for name in names]
        right.barh([place + offset for place in range(len(names))], means, height=0.25, label=label)
    right.axvline(_mean(plain), color="black", linewidth=1, label="fp32")
    right.set_xlabel("acceptance length, mean over prompt sets")
    right.set_xlim(left=1.0)
    right.legend(title="quantized", loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    left.invert_yaxis()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def _lengths(found: Mapping[str, float] | None) -> str:
    return "" if found is None else " / ".join(f"{length:.2f}" for length in found.values())


def _mean(lengths: Mapping[str, float]) -> float:
    return sum(lengths.values()) / len(lengths)


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
