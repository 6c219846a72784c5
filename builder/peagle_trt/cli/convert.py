"""`peagle-trt convert`: a head in another project's dialect."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from peagle_trt import catalog
from peagle_trt.cli.checkpoint_argument import NAME_OR_PATH, find_drafter, find_target, mask_token_option
from peagle_trt.cli.options import FOLDER
from peagle_trt.cli.output import Output
from peagle_trt.readers import read_head, read_target
from peagle_trt.writers import WRITERS, convert_head


@click.command("convert")
@click.argument("head", type=NAME_OR_PATH, metavar="NAME|PATH")
@click.option("--to", "dialect", type=click.Choice(list(WRITERS)), required=True, help="Whose dialect to write.")
@click.option("-o", "--output", "output_path", type=FOLDER, required=True, help="Folder to write; must not exist.")
@click.option(
    "--target",
    type=NAME_OR_PATH,
    metavar="NAME|PATH",
    help="The head's target, whose tensors are written out where the dialect wants them; a catalog name has its own.",
)
@mask_token_option
@click.pass_obj
def command(
    output: Output, head: str, *, dialect: str, output_path: Path, target: str | None, mask_token_id: int | None
) -> None:
    """Write a P-EAGLE or EAGLE-3 head the way another project reads it, without loss.

    A catalog name means its head. What a dialect cannot hold is refused with the reason.
    """
    path = find_drafter(head)
    target_path = find_target(target) if target is not None else _find_target_of(head)
    partner = read_target(target_path) if target_path is not None else None
    num_layers = partner.config.num_layers if partner else None
    drafter = read_head(path, num_target_layers=num_layers, mask_token_id=mask_token_id)
    converted = convert_head(drafter, partner, dialect, output_path)
    for note in converted.notes:
        output.progress(f"note: {note}")
    output.result(asdict(converted) | {"from": drafter.config.dialect, "to": dialect}, str(converted.path))


def _find_target_of(name_or_path: str) -> Path | None:
    """The target that a catalog keeps with a head; None for a head given by its folder."""
    return None if Path(name_or_path).exists() else catalog.target_path(catalog.find_entry(name_or_path))
