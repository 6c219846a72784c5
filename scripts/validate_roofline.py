"""Lays the roofline against what was measured: the P-EAGLE paper's and blog's tables, a pull request, this CPU.

    python -m scripts.validate_roofline table10   H200: 108 cells of tokens a second, 54 gains, the best K
    python -m scripts.validate_roofline blog      B200: 21 speed-ups over EAGLE-3, and four figures of a pull request
    python -m scripts.validate_roofline cpu       44 passes of smollm2-135m on one core of this CPU, and its decode loop

`--context N` sets the tokens present, which no source says.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec.structs

from peagle_trt.cli.script import positive, run_script
from peagle_trt.roofline import Device, curve_from_length, find_device, find_pair, p_eagle_step, plain_step
from peagle_trt.roofline.acceptance import P_EAGLE_DECAY
from scripts.fit_roofline import cpu_shares, with_constants
from scripts.roofline_tables import (
    CONTEXT_TOKENS,
    Published,
    blog_steps,
    cpu_time,
    is_fitted,
    load_of,
    loop_time,
    loops,
    predict_step,
    published,
    sweep,
    table10,
)

TOLERANCE = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One figure and its prediction.

    Attributes:
        name: What it is.
        measured: The figure.
        predicted: Ours.
    """

    name: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Relative to the measurement."""
        return self.predicted / self.measured - 1


def main() -> None:
    """Parse the command line and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=list(COMMANDS))
    parser.add_argument("--context", type=positive, default=CONTEXT_TOKENS)
    options = parser.parse_args()
    COMMANDS[options.what](options.context)


def report(title: str, cells: Sequence[Cell], *, shows_cells: bool = True) -> None:
    """Print every cell and a summary."""
    for cell in cells if shows_cells else ():
        miss = "" if abs(cell.error) <= TOLERANCE else "  MISS"
        figures = f"measured {cell.measured:8.3f}  predicted {cell.predicted:8.3f}"
        print(f"  {cell.name:52s} {figures}  {cell.error:+6.1%}{miss}")
    errors = [abs(cell.error) for cell in cells]
    inside = sum(error <= TOLERANCE for error in errors)
    print(
        f"{title}: {inside} of {len(cells)} within {TOLERANCE:.0%}; mean {statistics.mean(errors):.1%}, "
        f"median {statistics.median(errors):.1%}, largest {max(errors):.1%}"
    )


def lay_against_table10(context_tokens: int) -> None:
    """Tokens a second, and the gain over EAGLE-3, cell by cell."""
    device, cells = find_device("h200"), table10()
    predicted = {
        cell: cell.concurrency * cell.acceptance_length / predict_step(device, cell, context_tokens).seconds
        for cell in cells
    }
    rates = {cell: Cell(name=cell.name, measured=cell.tokens_per_second, predicted=predicted[cell]) for cell in cells}
    report("tokens/s, all cells", list(rates.values()))
    for model in dict.fromkeys(cell.model for cell in cells):
        report(f"tokens/s, {model}", [rates[cell] for cell in cells if cell.model == model], shows_cells=False)
    held_out = [rates[cell] for cell in cells if not is_fitted(cell)]
    report("tokens/s, cells that no constant was fitted to", held_out, shows_cells=False)
    report("gain of P-EAGLE over EAGLE-3 at equal K", gains(cells, predicted))
    print(f"best K of P-EAGLE: {count_best(cells, predicted)}")


def gains(cells: Sequence[Published], predicted: dict[Published, float]) -> list[Cell]:
    """P-EAGLE over EAGLE-3 at the same K."""
    found = []
    for cell in cells:
        if cell.method == "p-eagle":
            other = next(each for each in cells if each.method == "eagle3" and place(each) == place(cell))
            found.append(
                Cell(
                    name=cell.name,
                    measured=cell.tokens_per_second / other.tokens_per_second,
                    predicted=predicted[cell] / predicted[other],
                )
            )
    return found


def place(cell: Published) -> tuple[object, ...]:
    """What two methods share."""
    return cell.model, cell.prompts, cell.concurrency, cell.draft_tokens


def count_best(cells: Sequence[Published], predicted: dict[Published, float]) -> str:
    """How often the predicted best K is the measured one, and what choosing it would cost."""
    groups: dict[tuple[object, ...], list[Published]] = {}
    for cell in cells:
        if cell.method == "p-eagle":
            groups.setdefault(place(cell)[:3], []).append(cell)
    lost, same = [], 0
    for group in groups.values():
        best = max(group, key=lambda cell: cell.tokens_per_second)
        chosen = max(group, key=lambda cell: predicted[cell])
        same += chosen is best
        lost.append(1 - chosen.tokens_per_second / best.tokens_per_second)
    return f"right in {same} of {len(groups)}; choosing it loses {statistics.mean(lost):.1%}, at most {max(lost):.1%}"


def lay_against_blog(context_tokens: int) -> None:
    """Speed-ups over EAGLE-3, and four figures of a pull request."""
    device = find_device("b200")
    concurrency = published()["blog"]["concurrency"]
    cells, naive = [], []
    for step in blog_steps(device, context_tokens, concurrency):
        cells.append(Cell(name=step.name, measured=step.speedup, predicted=step.lengths * step.slow / step.fast))
        naive.append(Cell(name=step.name, measured=step.speedup, predicted=step.lengths))
    report("B200, P-EAGLE K=7 over EAGLE-3 K=3", cells)
    report(
        "without the fitted cells, those of one request", [c for c in cells if " C=1 " not in c.name], shows_cells=False
    )
    report("the ratio of acceptance lengths alone, for comparison", naive, shows_cells=False)
    report("pull request 32887, tokens/s", pull_request_cells(device, context_tokens))


def pull_request_cells(device: Device, context_tokens: int) -> list[Cell]:
    """Plain and speculative tokens a second."""
    request = published()["pull_request"]
    pair = find_pair(request["model"])
    drafter = msgspec.structs.replace(pair.drafter, num_layers=request["num_layers"])
    acceptance = request["acceptance"]
    curve = curve_from_length(
        acceptance["length"],
        draft_tokens=acceptance["draft_tokens"],
        max_draft_tokens=7,
        decay=P_EAGLE_DECAY,
        source="P-EAGLE paper, table 11",
    )
    cells = []
    for cell in request["cells"]:
        count, slots = cell["concurrency"], cell["draft_tokens"]
        load = load_of(pair, request["model"], count, context_tokens)
        plain = count / plain_step(device, pair.target, load).seconds
        fast = count * curve.length(slots) / p_eagle_step(device, pair.target, drafter, load, slots).seconds
        rate = cell["tokens_per_second"]
        cells.append(Cell(name=f"plain C={count} (fitted)", measured=rate / cell["speedup"], predicted=plain))
        cells.append(Cell(name=f"P-EAGLE C={count} K={slots}", measured=rate, predicted=fast))
    return cells


def lay_against_cpu(_: int) -> None:
    """Passes and whole steps, in milliseconds of CPU time, and as ratios to a plain step of one request."""
    device, measured = find_device("cpu"), sweep()
    context_tokens = measured["tokens_present"]
    cells = {
        (item["model"], item["draft_tokens"], item["batch_size"]): Cell(
            name=f"{item['model']} K={item['draft_tokens']} B={item['batch_size']} (ms)",
            measured=item["cpu_ms"],
            predicted=1e3 * cpu_time(device, item, context_tokens),
        )
        for item in measured["passes"]
    }
    plain = cells["target", 0, 1]
    report("passes, ms of CPU time", list(cells.values()))
    by_others = left_out(device, measured)
    report("passes, each by constants fitted to other numbers of requests", by_others, shows_cells=False)
    steps = []
    for (model, slots, batch), draft in cells.items():
        if model == "drafter":
            verify = cells["target", slots, batch]
            steps.append(
                Cell(
                    name=f"step K={slots} B={batch} over a plain step",
                    measured=(verify.measured + draft.measured) / plain.measured,
                    predicted=(verify.predicted + draft.predicted) / plain.predicted,
                )
            )
    report("verify and draft together, as ratios", steps)
    report_loop(device)


def left_out(device: Device, measured: dict[str, Any]) -> list[Cell]:
    """Passes of every number of requests, predicted by constants that are fitted to all passes of other numbers."""
    passes, context_tokens = measured["passes"], measured["tokens_present"]
    cells = []
    for count in sorted({item["batch_size"] for item in passes}):
        others = [item for item in passes if item["batch_size"] != count]
        bandwidth, rate = cpu_shares(device, others, context_tokens)
        fitted = with_constants(device, bandwidth_efficiency=bandwidth, compute_efficiency=rate)
        cells += [
            Cell(
                name=f"{item['model']} K={item['draft_tokens']} B={count} (ms)",
                measured=item["cpu_ms"],
                predicted=1e3 * cpu_time(fitted, item, context_tokens),
            )
            for item in passes
            if item["batch_size"] == count
        ]
    return cells


def report_loop(device: Device) -> None:
    """Tokens of the decode loop in a second of CPU time, and its speed-ups over plain decoding of as many requests."""
    measured = loops()
    rates: dict[tuple[int, int], Cell] = {}
    for item in measured["steps"]:
        slots, count = item["draft_tokens"], item["concurrency"]
        tokens = count * item["tokens_a_step"]
        rates[slots, count] = Cell(
            name=f"decode loop K={slots} B={count} (tokens/s)",
            measured=1e3 * tokens / item["cpu_ms"],
            predicted=tokens / loop_time(device, item, measured["context_tokens"]),
        )
    report("decode loop, tokens/s", list(rates.values()))
    speedups = [
        Cell(
            name=f"decode loop K={slots} B={count} over plain",
            measured=cell.measured / rates[0, count].measured,
            predicted=cell.predicted / rates[0, count].predicted,
        )
        for (slots, count), cell in rates.items()
        if slots
    ]
    report("decode loop, speed-up over plain decoding", speedups)


COMMANDS: dict[str, Callable[[int], None]] = {
    "table10": lay_against_table10,
    "blog": lay_against_blog,
    "cpu": lay_against_cpu,
}

if __name__ == "__main__":
    sys.exit(run_script(main))
