"""Lays the choice of `tune` against a full sweep of `bench`, in tokens a second of CPU time.

    peagle-trt --json tune BUILD --dry-run --threads 1 > tune.json
    peagle-trt bench BUILD --prompts gsm8k --num-prompts 16 --max-tokens 40 --ignore-eos -k 1,2,3,4,5 \
        --concurrency 1,2,4,8 --threads 1 -o SWEEP
    python -m scripts.compare_tune tune.json SWEEP

Methods of the sweep take turns, so a ratio within a round is of one and the same machine. A choice that costs more than
5 % of the sweep's best ends with 5.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import msgspec

from peagle_trt.bench.cells import Cell
from peagle_trt.bench.run_folder import CELLS_NAME
from peagle_trt.bench.spread import quartiles
from peagle_trt.cli.script import run_script
from peagle_trt.errors import UsageError

ALLOWED_LOSS = 0.05


def main() -> int:
    """Print a table of loads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tune", type=Path, help="what `peagle-trt --json tune` printed")
    parser.add_argument("sweep", type=Path, help="folder of `bench -o`, finished or not")
    options = parser.parse_args()
    cells = read_cells(options.sweep / CELLS_NAME)
    rows = [compare(load, draft_tokens, cells) for load, draft_tokens in read_choices(options.tune).items()]
    print("| requests | K of tune | best K of the sweep | tune's rate over the best's, median over rounds | rounds |")
    print("|---|---|---|---|---|")
    for row in rows:
        spread = "" if row["spread"] is None else f" ({row['spread'][0]:.3f}-{row['spread'][1]:.3f})"
        print(f"| {row['load']} | {row['chosen']} | {row['best']} | {row['ratio']:.3f}{spread} | {row['rounds']} |")
    return 0 if all(row["ratio"] >= 1 - ALLOWED_LOSS for row in rows) else 5


def read_choices(path: Path) -> dict[int, int]:
    """K by load, as `tune` chose it.

    Raises:
        UsageError: The file holds something else.
    """
    try:
        return {item["concurrency"]: item["draft_tokens"] for item in json.loads(path.read_text())["choices"]}
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"`{path}` holds no choices", hint="give what `peagle-trt --json tune` printed") from error


def read_cells(path: Path) -> list[Cell]:
    """The cells of a sweep.

    Raises:
        UsageError: The file holds something else.
    """
    try:
        return [msgspec.json.decode(line, type=Cell) for line in path.read_bytes().splitlines()]
    except msgspec.DecodeError as error:
        raise UsageError(f"`{path}` holds no cells: {error}", hint="give a folder of `bench -o`") from error


def compare(load: int, draft_tokens: int, cells: list[Cell]) -> dict[str, Any]:
    """One load: the choice over the K that was best over all rounds.

    Raises:
        UsageError: The sweep measured neither.
    """
    rates: dict[int, dict[tuple[str, int], float]] = {}
    totals: dict[int, tuple[int, float]] = {}
    for cell in cells:
        if cell.method.concurrency != load or cell.method.is_adaptive or cell.cpu_seconds is None:
            continue
        count = cell.method.draft_tokens
        rates.setdefault(count, {})[cell.prompts, cell.round] = cell.num_tokens / cell.cpu_seconds
        tokens, seconds = totals.get(count, (0, 0.0))
        totals[count] = (tokens + cell.num_tokens, seconds + cell.cpu_seconds)
    if draft_tokens not in rates:
        raise UsageError(
            f"the sweep has no round of {load} requests at K = {draft_tokens}", hint="sweep what `tune` chose from"
        )
    best = max(totals, key=lambda count: totals[count][0] / totals[count][1])
    ratios = [rate / rates[best][number] for number, rate in rates[draft_tokens].items()]
    return {
        "load": load,
        "chosen": draft_tokens,
        "best": best,
        "ratio": statistics.median(ratios),
        "spread": quartiles(ratios),
        "rounds": len(ratios),
    }


if __name__ == "__main__":
    sys.exit(run_script(main))
