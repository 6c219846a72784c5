"""`peagle-trt verify`: a finished build against its own digests and an independent reference."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from peagle_trt.cli.options import FOLDER
from peagle_trt.cli.output import Output
from peagle_trt.quant.weight_errors import worst
from peagle_trt.verify import Outcome, verify_build

NUM_WORST = 10


@click.command("verify")
@click.argument("build_path", metavar="BUILD", type=FOLDER)
@click.pass_obj
def command(output: Output, build_path: Path) -> None:
    """Check a build's files, then compare its engine with a plain numpy reference.

    The ten matrices that rounding moved furthest are shown; --json holds all of them.
    """
    outcome = verify_build(build_path)
    output.result({"path": build_path, **msgspec.to_builtins(outcome)}, _text(outcome))


def _text(outcome: Outcome) -> str:
    if not outcome.weights:
        return outcome.summary()
    shown = worst(outcome.weights, NUM_WORST)
    rows = [f"  {found.error:<10.2g}{found.form:<7}{found.model} {found.name}" for found in shown]
    return "\n".join([outcome.summary(), outcome.weights_summary(), *rows])
