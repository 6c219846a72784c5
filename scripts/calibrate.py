"""Calibrates a target, and its drafter, over prompts, and writes files of scales.

    scripts/calibrate TARGET_FOLDER --recipe nvfp4 --prompts gsm8k -o target-scales.safetensors
        [--drafter HEAD_FOLDER --drafter-output drafter-scales.safetensors]

Needs the extra `quant`. The target must fit into memory as float32.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from peagle_trt.calibrate import NUM_PROMPTS, calibrate
from peagle_trt.cli.script import positive, run_script
from peagle_trt.quant.calibration import CALIBRATIONS
from peagle_trt.quant.calibration.target import ANSWER_TOKENS


def main() -> None:
    """Run one calibration; exit codes are those of `peagle-trt`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--recipe", required=True, choices=CALIBRATIONS)
    parser.add_argument("--prompts", required=True, help="mt-bench, humaneval, gsm8k or a file")
    parser.add_argument("-o", "--output", type=Path, required=True, help="file of the target's scales")
    parser.add_argument("--drafter", type=Path, help="head to calibrate too")
    parser.add_argument("--drafter-output", type=Path, help="file of the head's scales")
    parser.add_argument("--num-prompts", type=positive, default=NUM_PROMPTS)
    parser.add_argument("--answer-tokens", type=positive, default=ANSWER_TOKENS)
    parser.add_argument("-k", "--draft-tokens", type=positive, default=5)
    parser.add_argument("--accept-dead-experts", action="store_true")
    options = parser.parse_args()
    if (options.drafter is None) != (options.drafter_output is None):
        parser.error("--drafter and --drafter-output belong together")
    started = time.process_time()
    found = calibrate(
        options.target,
        options.recipe,
        options.prompts,
        options.output,
        drafter_path=options.drafter,
        drafter_output_path=options.drafter_output,
        num_prompts=options.num_prompts,
        answer_tokens=options.answer_tokens,
        draft_tokens=options.draft_tokens,
        allows_dead_experts=options.accept_dead_experts,
        report=lambda line: print(line, file=sys.stderr),
    )
    for module, maxima in found.drafter_maxima.items():
        print(f"{module:28} first row {maxima.first:11.4f}   others {maxima.real:9.4f}   masks {maxima.masked:9.4f}")
    print(f"{time.process_time() - started:.0f} CPU seconds", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(run_script(main))
