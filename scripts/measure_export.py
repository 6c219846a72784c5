"""Measures what it takes to quantize a checkpoint: CPU seconds, weights a second, and the memory at its peak.

    scripts/measure_export FOLDER --recipe NAME [-o FOLDER]

Without -o every shard is made and thrown away, so that a model larger than the disk can be measured. Prints one line
of JSON. Run it with OMP_NUM_THREADS=1; synthesize_checkpoint writes folders of published sizes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from pathlib import Path

from peagle_trt.cli.script import run_script
from peagle_trt.quant.layer_recipes import load_layer_recipe
from peagle_trt.readers import read_target
from peagle_trt.readers.drafter import is_drafter, read_head
from peagle_trt.readers.stored_bytes import reading_of
from peagle_trt.writers.quantized import CheckpointPlan, plan_head, plan_target, quantize_target
from peagle_trt.writers.quantized.shards import cut_shards, write_jobs
from peagle_trt.writers.quantized.survey import survey


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--recipe", required=True)
    parser.add_argument("-o", "--output", type=Path, help="keep what is written")
    arguments = parser.parse_args()
    recipe = load_layer_recipe(arguments.recipe)
    start = time.process_time()
    if is_drafter(arguments.folder):
        plan = plan_head(read_head(arguments.folder), None, recipe, "vllm")
    else:
        plan = plan_target(read_target(arguments.folder), recipe)
    document: dict[str, object] = {"folder": arguments.folder.name, "recipe": recipe.name}
    document |= {"plan_seconds": round(time.process_time() - start, 1)}
    if arguments.output is None:
        document |= discard(plan)
    else:
        start = time.process_time()
        quantize_target(read_target(arguments.folder), recipe, arguments.output, progress=tell)
        document["export_seconds"] = round(time.process_time() - start, 1)
    document["num_weights"] = count_weights(plan)
    document["written_bytes"] = plan.written_bytes
    document["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(document))


def discard(plan: CheckpointPlan) -> dict[str, object]:
    """Survey and write, to nowhere."""
    start = os.times()
    shards = cut_shards(plan.jobs)
    with reading_of(plan.read_bytes):
        largest = survey(plan, tell)
        surveyed = os.times()
        for name, jobs in shards.items():
            tell(name)
            with Path(os.devnull).open("wb") as file:
                write_jobs(file, jobs, largest)
    end = os.times()
    return {
        "survey_seconds": round(surveyed.user + surveyed.system - start.user - start.system, 1),
        "write_seconds": round(end.user + end.system - surveyed.user - surveyed.system, 1),
        "kernel_seconds": round(end.system - start.system, 1),
        "num_shards": len(shards),
    }


def count_weights(plan: CheckpointPlan) -> int:
    """Weights of layers whose form changes."""
    width = {"fp8": 8, "nvfp4": 4.5, "bf16": 16}
    changed = (layer for layer in plan.layers if layer.activations != "none" or layer.weights in ("fp8", "nvfp4"))
    return sum(int(layer.written_bytes * 8 / width[layer.weights]) for layer in changed)


def tell(line: str) -> None:
    """Say what is going on."""
    print(line, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(run_script(main))
