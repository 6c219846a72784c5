"""`peagle-trt inspect`: what a checkpoint is, in our words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click
import msgspec

from peagle_trt import catalog
from peagle_trt.cli.checkpoint_argument import (
    NAME_OR_PATH,
    download_document,
    download_text,
    find_target,
    revision_option,
)
from peagle_trt.cli.output import Output
from peagle_trt.errors import CheckpointError, UsageError
from peagle_trt.readers import DrafterCheckpoint, TargetCheckpoint, check_pair, read_drafter, read_target
from peagle_trt.readers.drafter import is_drafter
from peagle_trt.spec import RopeConfig


@click.command("inspect")
@click.argument("checkpoint", type=NAME_OR_PATH, metavar="NAME|PATH")
@click.option("--target", type=NAME_OR_PATH, metavar="NAME|PATH", help="Check whether the head fits this target.")
@revision_option
@click.option("--tensors", "shows_tensors", is_flag=True, help="List every tensor.")
@click.pass_obj
def command(output: Output, checkpoint: str, *, target: str | None, revision: str | None, shows_tensors: bool) -> None:
    """Show a target's or a P-EAGLE head's configuration and tensors, with every foreign spelling translated.

    A catalog name means its target; one that would have to come from the hub is not fetched, only described. A head
    that does not fit the target of --target ends with exit code 4.
    """
    download = _missing_on_hub(checkpoint, revision)
    if download is not None:
        entry = catalog.find_entry(checkpoint)
        output.result(_entry_document(entry, download), f"{entry.name}: {entry.summary}\n{download_text(download)}")
        return
    path = find_target(checkpoint, revision=revision)
    partner = read_target(find_target(target)) if target is not None else None
    found = _read(path, partner)
    misfit = _judge(partner, found)
    document = _document(found) | _verdict(partner, misfit)
    output.result(document, _text(found, document, shows_tensors=shows_tensors))
    if misfit is not None:
        raise misfit


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


def _read(path: Path, partner: TargetCheckpoint | None) -> TargetCheckpoint | DrafterCheckpoint:
    if is_drafter(path):
        return read_drafter(path, num_target_layers=partner.config.num_layers if partner else None)
    if partner is not None:
        raise UsageError(f"`{path}` is a target; --target judges a head", hint="give the head's folder first")
    return read_target(path)


def _judge(target: TargetCheckpoint | None, found: TargetCheckpoint | DrafterCheckpoint) -> CheckpointError | None:
    """In what head and target disagree, or None where they fit or only one is given."""
    if target is None or not isinstance(found, DrafterCheckpoint):
        return None
    try:
        check_pair(target, found)
    except CheckpointError as error:
        return error
    return None


def _verdict(target: TargetCheckpoint | None, misfit: CheckpointError | None) -> dict[str, object]:
    if target is None:
        return {}
    if misfit is None:
        return {"fits": True, "pairing": "fits"}
    error = {
        "type": type(misfit).__name__,
        "message": misfit.message,
        "hint": misfit.hint,
        "exit_code": misfit.exit_code,
    }
    return {"ok": False, "fits": False, "pairing": misfit.message, "error": error}


def _document(found: TargetCheckpoint | DrafterCheckpoint) -> dict[str, object]:
    tensors = [
        {"name": name, "stored_name": lazy.spec.name, "type": lazy.spec.dtype, "shape": list(lazy.shape)}
        for name, lazy in found.weights.items()
    ]
    return {
        "kind": "drafter" if isinstance(found, DrafterCheckpoint) else "target",
        "path": found.path,
        "num_parameters": sum(_count(lazy.shape) for lazy in found.weights.values()),
        "config": msgspec.to_builtins(found.config),
        "tensors": tensors,
    }


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _text(found: TargetCheckpoint | DrafterCheckpoint, document: Mapping[str, object], *, shows_tensors: bool) -> str:
    lines = [
        f"{document['kind']}  {document['path']}",
        f"{document['num_parameters']:,} parameters in {len(found.weights)} tensors",
    ]
    fields = found.config.__struct_fields__
    lines += [f"  {name:<22} {_words(getattr(found.config, name))}" for name in fields]
    if shows_tensors:
        lines += [
            f"  {name:<36} {lazy.spec.dtype:<5} {' x '.join(map(str, lazy.shape)):<16} {lazy.spec.name}"
            for name, lazy in found.weights.items()
        ]
    if "fits" in document:
        lines.append("fits this target" if document["fits"] else f"does not fit this target: {document['pairing']}")
    return "\n".join(lines)


def _words(value: object) -> str:
    """A setting for people."""
    if isinstance(value, RopeConfig):
        return _rope_words(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else "not said" if value is None else str(value)


def _rope_words(rope: RopeConfig) -> str:
    """Base and, where a rule stretches it, the rule with what departs from its defaults."""
    usual = RopeConfig()
    apart = [
        f"{name} {_words(getattr(rope, name))}"
        for name in rope.__struct_fields__
        if name not in ("theta", "scaling") and getattr(rope, name) != getattr(usual, name)
    ]
    rule = "" if rope.scaling == "none" else f", {rope.scaling}: {', '.join(apart)}"
    return f"theta {_words(rope.theta)}{rule}"
