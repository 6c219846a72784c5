"""`peagle-trt verify`: a finished build against its own digests and an independent reference."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from peagle_trt.cli.options import FOLDER
from peagle_trt.cli.output import Output
from peagle_trt.verify import verify_build


@click.command("verify")
@click.argument("build_path", metavar="BUILD", type=FOLDER)
@click.pass_obj
def command(output: Output, build_path: Path) -> None:
    """Check a build's files, then compare its engine with a plain numpy reference."""
    outcome = verify_build(build_path)
    output.result({"path": build_path, **msgspec.to_builtins(outcome)}, outcome.summary())
