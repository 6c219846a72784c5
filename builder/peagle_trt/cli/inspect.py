"""`peagle-trt inspect`: what a checkpoint is, in our words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click
import msgspec

from peagle_trt import catalog
from peagle_trt.cli.output import Output
from peagle_trt.errors import CheckpointError
from peagle_trt.readers import DrafterCheckpoint, TargetCheckpoint, check_pair, read_drafter, read_target
from peagle_trt.readers.drafter import is_drafter


@click.command("inspect")
@click.argument("checkpoint", metavar="NAME|PATH")
@click.option("--target", metavar="NAME|PATH", help="Check whether the head fits this target.")
@click.option("--tensors", "shows_tensors", is_flag=True, help="List every tensor.")
@click.pass_obj
def command(output: Output, checkpoint: str, *, target: str | None, shows_tensors: bool) -> None:
    """Show a target's or a P-EAGLE head's configuration and tensors, with every foreign spelling translated.

    A catalog name means its target.
    """
    path = _find(checkpoint)
    partner = read_target(_find(target)) if target is not None else None
    if not is_drafter(path):
        found: TargetCheckpoint | DrafterCheckpoint = read_target(path)
        verdict = None
    else:
        found = read_drafter(path, num_target_layers=partner.config.num_layers if partner else None)
        verdict = _judge(partner, found) if partner else None
    document = _document(found, verdict)
    output.result(document, _text(document, shows_tensors=shows_tensors))


def _find(name_or_path: str) -> Path:
    path = Path(name_or_path)
    return path if path.exists() else catalog.target_path(catalog.find_entry(name_or_path))


def _judge(target: TargetCheckpoint, drafter: DrafterCheckpoint) -> str:
    """Whether they fit, or in what they disagree."""
    try:
        check_pair(target, drafter)
    except CheckpointError as error:
        return error.message
    return "fits"


def _document(found: TargetCheckpoint | DrafterCheckpoint, verdict: str | None) -> dict[str, object]:
    tensors = [
        {"name": name, "stored_name": lazy.spec.name, "type": lazy.spec.dtype, "shape": list(lazy.shape)}
        for name, lazy in found.weights.items()
    ]
    document: dict[str, object] = {
        "kind": "drafter" if isinstance(found, DrafterCheckpoint) else "target",
        "path": found.path,
        "num_parameters": sum(_count(lazy.shape) for lazy in found.weights.values()),
        "config": msgspec.to_builtins(found.config),
        "tensors": tensors,
    }
    return document if verdict is None else document | {"pairing": verdict}


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _text(document: Mapping[str, object], *, shows_tensors: bool) -> str:
    config, tensors = document["config"], document["tensors"]
    assert isinstance(config, dict) and isinstance(tensors, list)
    lines = [
        f"{document['kind']}  {document['path']}",
        f"{document['num_parameters']:,} parameters in {len(tensors)} tensors",
    ]
    lines += [f"  {key:<22} {value}" for key, value in config.items()]
    if shows_tensors:
        lines += [f"  {t['name']:<36} {t['type']:<5} {t['shape']}  {t['stored_name']}" for t in tensors]
    if "pairing" in document:
        lines.append(f"with this target: {document['pairing']}")
    return "\n".join(lines)
