"""`peagle-trt inspect`: what a checkpoint is, in our words, and whether a head fits a target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from peagle_trt import catalog
from peagle_trt.build_folder import MANIFEST_NAME
from peagle_trt.cli.checkpoint_argument import (
    NAME_OR_PATH,
    download_document,
    download_text,
    find_target,
    mask_token_option,
    revision_option,
)
from peagle_trt.cli.inspect_document import Checkpoint, describe
from peagle_trt.cli.inspect_text import write_text
from peagle_trt.cli.output import Output
from peagle_trt.cli.quantized_text import describe_plan, judge, plan_text
from peagle_trt.errors import CheckpointError, UsageError
from peagle_trt.quant.layer_recipes import LAYER_RECIPES, load_layer_recipe
from peagle_trt.readers import DrafterCheckpoint, Finding, TargetCheckpoint, judge_head, read_head, read_target
from peagle_trt.readers.drafter import is_drafter
from peagle_trt.writers.quantized import plan_head, plan_target


@click.command("inspect")
@click.argument("checkpoint", type=NAME_OR_PATH, metavar="NAME|PATH")
@click.option("--target", type=NAME_OR_PATH, metavar="NAME|PATH", help="Check whether the head fits this target.")
@mask_token_option
@revision_option
@click.option(
    "--recipe", metavar="NAME|FILE", help=f"Show what a recipe makes of every layer: {', '.join(LAYER_RECIPES)}."
)
@click.option(
    "--loaders", "judges_loaders", is_flag=True, help="Check a quantized folder by the rules of vLLM and TensorRT-LLM."
)
@click.option("--tensors", "shows_tensors", is_flag=True, help="List every tensor.")
@click.pass_obj
def command(
    output: Output,
    checkpoint: str,
    *,
    target: str | None,
    mask_token_id: int | None,
    revision: str | None,
    recipe: str | None,
    judges_loaders: bool,
    shows_tensors: bool,
) -> None:
    """Show a target's or a head's configuration and tensors, with every foreign spelling translated.

    A catalog name means its target; one that would have to come from the hub is not fetched, only described. With
    --target every point that head and target must agree on is listed as ok, note, warning or refused; a head that does
    not fit ends with exit code 4, and with --loaders one that a loader refuses.
    """
    if judges_loaders:
        judge(output, find_target(checkpoint, revision=revision))
        return
    rules = load_layer_recipe(recipe) if recipe is not None else None
    download = _missing_on_hub(checkpoint, revision)
    if download is not None:
        entry = catalog.find_entry(checkpoint)
        output.result(_entry_document(entry, download), f"{entry.name}: {entry.summary}\n{download_text(download)}")
        return
    path = find_target(checkpoint, revision=revision)
    _refuse_build(path)
    partner = read_target(find_target(target)) if target is not None else None
    found = _read(path, partner, mask_token_id)
    findings = judge_head(found, partner) if isinstance(found, DrafterCheckpoint) else []
    misfit = _first_refusal(findings)
    document = describe(found, findings) | _verdict(partner, misfit)
    text = write_text(found, document, shows_tensors=shows_tensors)
    if rules is not None:
        plan = (
            plan_head(found, partner, rules, "vllm")
            if isinstance(found, DrafterCheckpoint)
            else plan_target(found, rules)
        )
        document["recipe"] = describe_plan(plan)
        text = f"{text}\n{plan_text(plan, shows_layers=shows_tensors)}"
    output.result(document, text)
    if misfit is not None:
        raise misfit


def _refuse_build(path: Path) -> None:
    if (path / MANIFEST_NAME).is_file() and not (path / "config.json").exists():
        raise UsageError(
            f"`{path}` is a build, and `inspect` shows checkpoints",
            hint=f"`{MANIFEST_NAME}` tells what is in it, and peagle-trt verify BUILD whether it is right",
        )


def _missing_on_hub(checkpoint: str, revision: str | None) -> catalog.Download | None:
    if Path(checkpoint).exists():
        return None
    entry = catalog.find_entry(checkpoint)
    return catalog.missing_target(entry, revision=revision) if isinstance(entry.target, catalog.HubRepository) else None


def _entry_document(entry: catalog.CatalogEntry, download: catalog.Download) -> dict[str, object]:
    return {
        "kind": "catalog entry",
        "name": entry.name,
        "summary": entry.summary,
        "licence": entry.licence,
        "source": entry.source,
        "is_here": False,
        "downloads": [download_document(download)],
    }


def _read(path: Path, partner: TargetCheckpoint | None, mask_token_id: int | None) -> Checkpoint:
    if is_drafter(path):
        num_layers = partner.config.num_layers if partner else None
        return read_head(path, num_target_layers=num_layers, mask_token_id=mask_token_id)
    for option, value in (("--target", partner), ("--mask-token-id", mask_token_id)):
        if value is not None:
            raise UsageError(f"`{path}` is a target; {option} judges a head", hint="give the head's folder first")
    return read_target(path)


def _first_refusal(findings: Sequence[Finding]) -> CheckpointError | None:
    return next((finding.error() for finding in findings if finding.level == "refused"), None)


def _verdict(target: TargetCheckpoint | None, misfit: CheckpointError | None) -> dict[str, object]:
    if misfit is not None:
        error = {
            "type": type(misfit).__name__,
            "message": misfit.message,
            "hint": misfit.hint,
            "exit_code": misfit.exit_code,
        }
        return {"ok": False, "fits": False, "pairing": misfit.message, "error": error}
    return {} if target is None else {"fits": True, "pairing": "fits"}
