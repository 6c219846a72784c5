"""Time of a step's two passes on this CPU, for every K and batch size: what the roofline is laid against.

    python scripts/measure_steps.py BUILD -o scripts/roofline/cpu_sweep.json [--threads N] [--turns N]

Passes run in turns, and every turn begins with a plain step of one request; beside its CPU and wall time a pass is
reported over that step's, so that a busy machine slows both alike. How many drafts were accepted does not change the
work, since a pass has fixed width.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from peagle_trt.cli.script import positive, run_script
from peagle_trt.decode.session import LoadedBuild, open_build
from peagle_trt.engine.protocol import DraftRows, TargetRows
from peagle_trt.machine import probe_machine

DRAFT_TOKENS = (0, 1, 2, 3, 5, 7)
BATCH_SIZES = (1, 2, 4, 8)
TOKENS_PRESENT = 300


def main() -> None:
    """Parse the command line, measure, write one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--threads", type=positive, default=1)
    parser.add_argument("--turns", type=positive, default=15)
    options = parser.parse_args()
    build = open_build(options.build, num_threads=options.threads)
    build.engine.preload()
    passes = make_passes(build)
    for run in passes.values():
        run()
    turns = [measure_turn(passes) for _ in range(options.turns)]
    document = {
        "processor": probe_machine().processor,
        "target": build.manifest.name,
        "precision": build.manifest.precision,
        "threads": options.threads,
        "turns": options.turns,
        "tokens_present": TOKENS_PRESENT,
        "passes": [summarise(name, turns) for name in passes],
    }
    options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


Name = tuple[str, int, int]
"""Model, K and batch size."""


def make_passes(build: LoadedBuild) -> dict[Name, Callable[[], object]]:
    """Every pass of the sweep; the plain step of one request comes first."""
    passes: dict[Name, Callable[[], object]] = {}
    for draft_tokens in DRAFT_TOKENS:
        for batch_size in BATCH_SIZES:
            rows = target_rows(draft_tokens, batch_size)
            passes["target", draft_tokens, batch_size] = lambda rows=rows: build.engine.run_target(rows)
            if draft_tokens:
                drafts = draft_rows(build, draft_tokens, batch_size)
                passes["drafter", draft_tokens, batch_size] = lambda drafts=drafts, count=draft_tokens: (
                    build.engine.run_drafter(drafts, count)
                )
    return passes


def target_rows(draft_tokens: int, batch_size: int) -> list[TargetRows]:
    """What the target reads in a verify pass."""
    ids = np.arange(100, 101 + draft_tokens, dtype=np.int32)
    return [
        TargetRows(slot=slot, token_ids=ids, start_position=TOKENS_PRESENT, num_logit_rows=len(ids))
        for slot in range(batch_size)
    ]


def draft_rows(build: LoadedBuild, draft_tokens: int, batch_size: int) -> list[DraftRows]:
    """What the drafter reads after it."""
    width = len(build.manifest.drafter.aux_layer_ids) * build.manifest.drafter.target_hidden_size
    count = draft_tokens + 1
    return [
        DraftRows(
            slot=slot,
            next_token_ids=np.arange(100, 100 + count, dtype=np.int32),
            hidden=np.full((count, width), 0.5, np.float32),
            num_accepted=draft_tokens // 2,
            start_position=TOKENS_PRESENT,
        )
        for slot in range(batch_size)
    ]


def measure_turn(passes: dict[Name, Callable[[], object]]) -> dict[Name, tuple[float, float]]:
    """CPU and wall seconds of every pass, once each."""
    times = {}
    for name, run in passes.items():
        cpu, wall = time.process_time(), time.perf_counter()
        run()
        times[name] = (time.process_time() - cpu, time.perf_counter() - wall)
    return times


def summarise(name: Name, turns: list[dict[Name, tuple[float, float]]]) -> dict[str, object]:
    """Medians over turns: milliseconds, and ratios within a turn to the plain step of one request."""
    model, draft_tokens, batch_size = name
    plain: Name = ("target", 0, 1)
    ratios = [turn[name][0] / turn[plain][0] for turn in turns]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "model": model,
        "draft_tokens": draft_tokens,
        "batch_size": batch_size,
        "cpu_ms": round(1e3 * statistics.median(turn[name][0] for turn in turns), 3),
        "wall_ms": round(1e3 * statistics.median(turn[name][1] for turn in turns), 3),
        "fastest_cpu_ms": round(1e3 * min(turn[name][0] for turn in turns), 3),
        "ratio": round(middle, 4),
        "ratio_quartiles": [round(low, 4), round(high, 4)],
    }


if __name__ == "__main__":
    sys.exit(run_script(main))
