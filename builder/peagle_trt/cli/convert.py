"""`peagle-trt convert`: a head in another project's dialect, or a target or a head quantized for other engines."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import click

from peagle_trt import catalog
from peagle_trt.cli.checkpoint_argument import NAME_OR_PATH, find_drafter, find_target, mask_token_option
from peagle_trt.cli.options import FILE, FOLDER
from peagle_trt.cli.output import Output
from peagle_trt.errors import UsageError
from peagle_trt.quant.activation_scales import read_activation_scales
from peagle_trt.quant.layer_recipes import LAYER_RECIPES, load_layer_recipe
from peagle_trt.readers import DrafterCheckpoint, TargetCheckpoint, read_head, read_target
from peagle_trt.readers.drafter import is_drafter
from peagle_trt.writers import WRITERS, convert_head
from peagle_trt.writers.quantized import HEAD_DIALECTS, QuantizedCheckpoint, quantize_head, quantize_target

if TYPE_CHECKING:
    from peagle_trt.writers.quantized import HeadDialect

HUGGINGFACE: Literal["huggingface"] = "huggingface"
"""The one layout of targets: what ModelOpt exports, and vLLM and TensorRT-LLM load."""
_QuantizedDialect: TypeAlias = 'HeadDialect | Literal["huggingface"]'


@click.command("convert")
@click.argument("checkpoint", type=NAME_OR_PATH, metavar="NAME|PATH")
@click.option(
    "--to",
    "dialect",
    type=click.Choice([*WRITERS, HUGGINGFACE]),
    help="Whose dialect to write; huggingface for a target. With --recipe a path's own kind decides.",
)
@click.option("-o", "--output", "output_path", type=FOLDER, required=True, help="Folder to write; must not exist.")
@click.option(
    "--recipe",
    metavar="NAME|FILE",
    help=f"Quantize for vLLM and TensorRT-LLM on the way: {', '.join(LAYER_RECIPES)}, or a TOML file.",
)
@click.option("--scales", "scales_path", type=FILE, help="Measured scales of activations; the constant 1 without.")
@click.option(
    "--keep-above",
    type=float,
    metavar="ERROR",
    help="With --recipe: leave a layer as it is where rounding would move it further (norm of the difference over its "
    "norm, such as 0.1), with what loaders multiply with it. Reads all weights once more.",
)
@click.option(
    "--target",
    type=NAME_OR_PATH,
    metavar="NAME|PATH",
    help="The head's target, whose tensors are written out where the dialect wants them; a catalog name has its own.",
)
@mask_token_option
@click.pass_obj
def command(
    output: Output,
    checkpoint: str,
    *,
    dialect: str | None,
    output_path: Path,
    recipe: str | None,
    scales_path: Path | None,
    keep_above: float | None,
    target: str | None,
    mask_token_id: int | None,
) -> None:
    """Write a P-EAGLE or EAGLE-3 head the way another project reads it, or quantize a target or a head.

    A catalog name means its head, or with --to huggingface its target. What a dialect cannot hold is refused with the
    reason. A run with --recipe that was stopped goes on when it is started again.
    """
    if recipe is None:
        _require_plain(dialect, scales_path, keep_above)
        assert dialect is not None, "just checked"
        drafter, partner = _read_head(checkpoint, target, mask_token_id)
        converted = convert_head(drafter, partner, dialect, output_path)
        for note in converted.notes:
            output.progress(f"note: {note}")
        output.result(asdict(converted) | {"from": drafter.config.dialect, "to": dialect}, str(converted.path))
        return
    chosen = _choose_dialect(checkpoint, dialect)
    if chosen == HUGGINGFACE:
        _refuse_head_options(checkpoint, target, mask_token_id)
        written = _quantize_target(output, checkpoint, recipe, scales_path, keep_above, output_path)
    else:
        drafter, partner = _read_head(checkpoint, target, mask_token_id)
        scales = read_activation_scales(scales_path)
        rules = load_layer_recipe(recipe)
        written = quantize_head(
            drafter,
            partner,
            rules,
            chosen,
            output_path,
            scales=scales,
            keep_above=keep_above,
            progress=output.progress,
        )
    for note in written.notes:
        output.progress(f"note: {note}")
    output.result(asdict(written) | {"to": chosen, "recipe": recipe}, str(written.path))


def _quantize_target(
    output: Output,
    checkpoint: str,
    recipe: str,
    scales_path: Path | None,
    keep_above: float | None,
    output_path: Path,
) -> QuantizedCheckpoint:
    rules = load_layer_recipe(recipe)
    scales = read_activation_scales(scales_path)
    found = read_target(find_target(checkpoint))
    return quantize_target(found, rules, output_path, scales=scales, keep_above=keep_above, progress=output.progress)


def _read_head(
    checkpoint: str, target: str | None, mask_token_id: int | None
) -> tuple[DrafterCheckpoint, TargetCheckpoint | None]:
    """A head with its target, where that is known."""
    path = find_drafter(checkpoint)
    target_path = find_target(target) if target is not None else _find_target_of(checkpoint)
    partner = read_target(target_path) if target_path is not None else None
    num_layers = partner.config.num_layers if partner else None
    return read_head(path, num_target_layers=num_layers, mask_token_id=mask_token_id), partner


def _find_target_of(name_or_path: str) -> Path | None:
    """The target that a catalog keeps with a head; None for a head given by its folder."""
    return None if Path(name_or_path).exists() else catalog.target_path(catalog.find_entry(name_or_path))


def _require_plain(dialect: str | None, scales_path: Path | None, keep_above: float | None) -> None:
    """Check options for a conversion that quantizes nothing."""
    if dialect is None:
        raise UsageError("neither --to nor --recipe is given", hint="say whose dialect to write, or what to quantize")
    if dialect == HUGGINGFACE:
        raise UsageError(
            "--to huggingface writes a quantized target and needs --recipe", hint=f"known: {', '.join(LAYER_RECIPES)}"
        )
    if scales_path is not None:
        raise UsageError("--scales belongs to --recipe", hint="leave --scales out")
    if keep_above is not None:
        raise UsageError("--keep-above belongs to --recipe", hint="leave --keep-above out")


def _choose_dialect(checkpoint: str, dialect: str | None) -> _QuantizedDialect:
    """What to write with a recipe: as said, or as the checkpoint's own kind has it."""
    path = Path(checkpoint)
    if dialect is None and not path.exists():
        raise UsageError(
            f"`{checkpoint}` means a target and its head",
            hint="say which with --to huggingface or --to vllm",
        )
    chosen = dialect or ("vllm" if is_drafter(path) else HUGGINGFACE)
    if path.exists() and is_drafter(path) == (chosen == HUGGINGFACE):
        kind, fitting = ("head", ", ".join(HEAD_DIALECTS)) if chosen == HUGGINGFACE else ("target", HUGGINGFACE)
        raise UsageError(f"`{checkpoint}` is a {kind}, which --to {chosen} does not write", hint=f"take {fitting}")
    for known in (*HEAD_DIALECTS, HUGGINGFACE):
        if chosen == known:
            return known
    raise UsageError(f"the {chosen} dialect has no quantized heads", hint=f"take {', '.join(HEAD_DIALECTS)}")


def _refuse_head_options(checkpoint: str, target: str | None, mask_token_id: int | None) -> None:
    for option, value in (("--target", target), ("--mask-token-id", mask_token_id)):
        if value is not None:
            raise UsageError(f"`{checkpoint}` is a target; {option} belongs to a head", hint=f"leave {option} out")
