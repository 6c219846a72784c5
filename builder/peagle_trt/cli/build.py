"""`peagle-trt build`: checkpoints in, build out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from peagle_trt import catalog, pipeline
from peagle_trt.build_folder import staging_path
from peagle_trt.cli.checkpoint_argument import (
    NAME_OR_PATH,
    download_document,
    download_text,
    mask_token_option,
    refuse_revision,
    revision_option,
)
from peagle_trt.cli.options import FILE, FOLDER, NumberList, config_option
from peagle_trt.cli.output import Output
from peagle_trt.engine.registry import ALL_BACKENDS
from peagle_trt.errors import UsageError
from peagle_trt.files import resolve_output
from peagle_trt.plan import MAX_BATCH_SIZE, MAX_SEQUENCE_LENGTH, MIN_SEQUENCE_LENGTH, STAGES, Plan
from peagle_trt.quant import AUTOMATIC, BUILD_RECIPES, find_recipe
from peagle_trt.quant.registry import MAX_AUTOMATIC_BYTES, UNBUILDABLE
from peagle_trt.readers import read_target
from peagle_trt.readers.huggingface import read_target_config
from peagle_trt.spec import BuildSpec, EngineManifest
from peagle_trt.spec.build import MAX_DRAFT_TOKENS, MIN_DRAFT_TOKENS

# For targets outside the catalog.
DEFAULT_DRAFT_TOKENS = 5
DEFAULT_BATCH_SIZE = 8
DEFAULT_SEQUENCE_LENGTH = 2048


def _default_of(number: int) -> str:
    return f"by default the catalog entry's, else {number}."


class _Precision(click.Choice):  # type: ignore[type-arg]  # Generic from click 8.2 on only.
    """A recipe of builds; one that is of checkpoints alone is refused with the reason."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in UNBUILDABLE:
            find_recipe(value)
        return super().convert(value, param, ctx)


@click.command("build")
@click.option(
    "--target",
    type=NAME_OR_PATH,
    metavar="NAME|PATH",
    required=True,
    help="A catalog name, a checkpoint's folder, or a GGUF file.",
)
@click.option("--target-path", type=FOLDER, help="Where the target of that catalog name lies, instead of fetching it.")
@click.option(
    "--drafter",
    type=NAME_OR_PATH,
    metavar="NAME|PATH",
    help="A head's folder, or the catalog name whose head to take; the catalog entry's by default.",
)
@mask_token_option
@revision_option
@click.option(
    "--drafter-revision", metavar="REV", help="The same of the drafter on the hub; by default its catalog entry's."
)
@click.option("--tokenizer", "tokenizer_path", type=FOLDER, help="Where the tokenizer lies; the target's by default.")
@click.option(
    "-k",
    "--draft-tokens",
    type=click.IntRange(MIN_DRAFT_TOKENS, MAX_DRAFT_TOKENS),
    help=f"K: tokens drafted in each step; {_default_of(DEFAULT_DRAFT_TOKENS)}",
)
@click.option(
    "--precision",
    type=_Precision([AUTOMATIC, *BUILD_RECIPES]),
    default=AUTOMATIC,
    show_default=True,
    help="Recipe of the weights; auto is fp32 unless that would take more than "
    f"{MAX_AUTOMATIC_BYTES >> 30} GiB, then native.",
)
@click.option(
    "--scales",
    "scales_path",
    type=FILE,
    help="Scales of the target's activations, measured by scripts/calibrate, for a --precision that rounds them; "
    "without, every row is measured as it comes.",
)
@click.option(
    "--keep-above",
    type=float,
    metavar="ERROR",
    help="Leave a matrix as it is where rounding would move it further: norm of the difference over its norm, such as "
    "0.1. Reads all weights once more.",
)
@click.option("--drafter-scales", "drafter_scales_path", type=FILE, help="The same of the drafter's.")
@click.option(
    "--backend", type=click.Choice(["auto", *ALL_BACKENDS]), default="auto", show_default=True, help="What runs it."
)
@click.option(
    "--sm",
    "compute_capabilities",
    type=NumberList(min=75, max=999),
    help="GPUs that tensorrt-rtx compiles for, as compute capabilities without the dot: 120 for an RTX PRO 6000, 89 "
    "for an L40. By default this machine's GPU, else 120.",
)
@click.option(
    "--max-batch-size",
    type=click.IntRange(1, MAX_BATCH_SIZE),
    help=f"Sequences that may share a step; {_default_of(DEFAULT_BATCH_SIZE)}",
)
@click.option(
    "--max-sequence-length",
    type=click.IntRange(MIN_SEQUENCE_LENGTH, MAX_SEQUENCE_LENGTH),
    help=f"Prompt and answer together, in tokens; {_default_of(DEFAULT_SEQUENCE_LENGTH)} "
    "Never more than the target was made for.",
)
@click.option(
    "--until", type=click.Choice(STAGES), default=STAGES[-1], show_default=True, help="Stop after this stage."
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show what would run or be downloaded, what is cached and how many bytes; write nothing.",
)
@click.option("--force", is_flag=True, help="Run every step again, cached or not.")
@click.option("-o", "--output", "output_path", type=FOLDER, help="Folder to write; builds/NAME by default.")
@config_option
@click.pass_obj
def command(
    output: Output,
    *,
    target: str,
    target_path: Path | None,
    drafter: str | None,
    mask_token_id: int | None,
    revision: str | None,
    drafter_revision: str | None,
    tokenizer_path: Path | None,
    draft_tokens: int | None,
    precision: str,
    scales_path: Path | None,
    keep_above: float | None,
    drafter_scales_path: Path | None,
    backend: str,
    compute_capabilities: tuple[int, ...] | None,
    max_batch_size: int | None,
    max_sequence_length: int | None,
    until: str,
    dry_run: bool,
    force: bool,
    output_path: Path | None,
) -> None:
    """Compile a target and its P-EAGLE drafter into a build.

    A build is a folder with engines, weights, tokenizer and a manifest. A second run does only what has changed.
    """
    entry = catalog.find_entry(target) if not Path(target).exists() or catalog.has_entry(target) else None
    name = entry.name if entry else Path(target).resolve().name.removesuffix(".gguf")
    origins = (
        _origin(entry if target_path is None else None, target_path or Path(target), revision, "--revision"),
        _find_drafter(drafter, entry, drafter_revision),
    )
    _check_local_target(origins[0])
    downloads = _missing(*origins)
    if dry_run and downloads:
        output.result(_downloads_document(downloads), "\n".join(map(download_text, downloads)))
        return
    # The drafter first: it is small, and what is wrong with the hub or a token shows with it.
    drafter_path = _fetch_drafter(origins[1], output)
    resolved_path = _fetch_target(origins[0], output)
    spec = BuildSpec(
        name=name,
        target_path=resolved_path,
        drafter_path=drafter_path,
        tokenizer_path=tokenizer_path or resolved_path,
        output_path=output_path or Path("builds") / name,
        draft_tokens=draft_tokens or (entry.draft_tokens if entry else DEFAULT_DRAFT_TOKENS),
        precision=precision,
        scales_path=scales_path,
        drafter_scales_path=drafter_scales_path,
        keep_above=keep_above,
        backend=backend,
        max_batch_size=max_batch_size or (entry.max_batch_size if entry else DEFAULT_BATCH_SIZE),
        max_sequence_length=max_sequence_length
        or _default_length(entry, resolved_path, is_entrys_own=target_path is None),
        target_source=entry.source if entry and target_path is None else "",
        drafter_source=entry.drafter_source if entry and drafter is None else "",
        mask_token_id=mask_token_id,
        compute_capabilities=tuple(str(each) for each in dict.fromkeys(compute_capabilities or ())),
    )
    if dry_run:
        plan = pipeline.dry_run(spec, report=output.progress)
        output.result(_plan_document(plan), _plan_text(plan))
        return
    manifest = pipeline.build(spec, until=until, is_fresh=force, report=output.progress)
    output.result(_build_document(spec, manifest), _build_text(spec, manifest))


def _default_length(entry: catalog.CatalogEntry | None, target_path: Path, *, is_entrys_own: bool) -> int:
    if entry is not None and is_entrys_own:
        return entry.max_sequence_length
    wanted = DEFAULT_SEQUENCE_LENGTH if entry is None else entry.max_sequence_length
    # A target made for less than the shortest build is refused with its checkpoint, not as a length nobody asked for.
    return max(MIN_SEQUENCE_LENGTH, min(wanted, read_target(target_path).config.max_positions))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Origin:
    """Where a checkpoint comes from: the catalog's entry, else the path; a revision is only for the hub."""

    entry: catalog.CatalogEntry | None
    path: Path
    revision: str | None


def _find_drafter(drafter: str | None, entry: catalog.CatalogEntry | None, revision: str | None) -> _Origin:
    if drafter is None and entry is None:
        raise UsageError("a target of your own needs a drafter", hint="give its head with --drafter")
    if drafter is not None:
        entry = catalog.find_entry(drafter) if not Path(drafter).exists() else None
    return _origin(entry, Path(drafter or ""), revision, "--drafter-revision")


def _origin(entry: catalog.CatalogEntry | None, path: Path, revision: str | None, option: str) -> _Origin:
    if entry is None:
        refuse_revision(revision, option, path)
    return _Origin(entry=entry, path=path, revision=revision)


def _missing(target: _Origin, drafter: _Origin) -> list[catalog.Download]:
    found = [
        missing(origin.entry, revision=origin.revision)
        for origin, missing in ((target, catalog.missing_target), (drafter, catalog.missing_drafter))
        if origin.entry is not None
    ]
    return [download for download in found if download is not None]


def _check_local_target(origin: _Origin) -> None:
    """Refuse a target that lies here before anything is downloaded for it."""
    if origin.entry is None:
        read_target(origin.path)


def _fetch_target(origin: _Origin, output: Output) -> Path:
    if origin.entry is None:
        return origin.path
    # A model that is not supported is refused with its configuration, not after all of its weights.
    return catalog.target_path(origin.entry, revision=origin.revision, report=output.progress, check=read_target_config)


def _fetch_drafter(origin: _Origin, output: Output) -> Path:
    if origin.entry is None:
        return origin.path
    return catalog.drafter_path(origin.entry, revision=origin.revision, report=output.progress)


def _downloads_document(downloads: list[catalog.Download]) -> dict[str, object]:
    return {"is_complete": False, "steps": [], "downloads": [download_document(download) for download in downloads]}


def _plan_document(plan: Plan) -> dict[str, object]:
    steps = [
        {
            "name": step.name,
            "cached": step.is_cached,
            "bytes": step.size_bytes,
            "in_place_bytes": step.in_place_bytes,
            "inputs": step.inputs,
        }
        for step in plan.steps
    ]
    return {
        "is_complete": plan.is_complete,
        "memory_bytes_up_to_graph": plan.memory_bytes,
        "steps": steps,
        "downloads": [],
    }


def _plan_text(plan: Plan) -> str:
    lines = []
    for step in plan.steps:
        size = "" if step.size_bytes is None else f"{step.size_bytes:>16,} bytes"
        if step.in_place_bytes:
            size += f" new, {step.in_place_bytes:,} in place"
        lines.append(f"{step.name:<10} {'cached' if step.is_cached else 'to do':<8}{size}".rstrip())
    if plan.memory_bytes is not None:
        lines.append(f"memory up to `graph`: about {plan.memory_bytes >> 20:,} MiB at most")
    return "\n".join(lines)


def _build_document(spec: BuildSpec, manifest: EngineManifest) -> dict[str, object]:
    is_complete = bool(manifest.files)
    return {
        "path": spec.output_path if is_complete else staging_path(resolve_output(spec.output_path)),
        "is_complete": is_complete,
        "name": manifest.name,
        "backend": manifest.backend,
        "precision": manifest.precision,
        "keep_above": manifest.keep_above,
        "left_out": manifest.left_out,
        "draft_tokens": manifest.shapes.draft_tokens,
        "max_batch_size": manifest.shapes.max_batch_size,
        "max_sequence_length": manifest.shapes.max_sequence_length,
        "size_bytes": sum(file.size_bytes for file in manifest.files),
        "engines": {role: msgspec.to_builtins(engine) for role, engine in manifest.engines.items()},
    }


def _build_text(spec: BuildSpec, manifest: EngineManifest) -> str:
    if manifest.files:
        return str(spec.output_path)
    return f"stopped early; the finished steps wait in {staging_path(resolve_output(spec.output_path))}"
