"""From a plan to a folder: survey, shards, descriptions, a check by the loaders' rules, and the name last."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec

from peagle_trt.errors import CheckpointError
from peagle_trt.files import (
    SAMPLED_FROM_BYTES,
    locked_folder,
    naming_os_errors,
    remove_folder,
    remove_leftover,
    require_free_space,
    sampled_sha256_of,
    sha256_of,
    write_text,
)
from peagle_trt.quant.activation_scales import NO_SCALES, ActivationScales
from peagle_trt.quant.layer_recipes import LayerRecipe
from peagle_trt.quant.left_out import check_limit
from peagle_trt.quant.magnitudes import LARGEST_ROUNDED, require_roundable
from peagle_trt.quant.stored_floats import largest_magnitude
from peagle_trt.readers import DrafterCheckpoint, TargetCheckpoint, check_pair, checkpoint_files
from peagle_trt.readers.quantized import HF_QUANT_CONFIG
from peagle_trt.readers.stored_bytes import reading_of
from peagle_trt.writers.folder import CONFIG_NAME, require_free_name
from peagle_trt.writers.loaders import LOADERS, judge_folder
from peagle_trt.writers.quantized.head_plan import HeadDialect, plan_head
from peagle_trt.writers.quantized.jobs import Job, Largest
from peagle_trt.writers.quantized.left_out import leave_out
from peagle_trt.writers.quantized.plan import CheckpointPlan, plan_target
from peagle_trt.writers.quantized.shards import (
    JOURNAL,
    MAX_SHARD_BYTES,
    Journal,
    cut_shards,
    is_finished,
    read_journal,
    write_index,
    write_journal,
    write_shard,
)
from peagle_trt.writers.quantized.survey import survey

Progress = Callable[[str], None]
Shards = Mapping[str, tuple[Job, ...]]
# What lies beside the weights and is no code: tokenizers, templates, licences.
_TEXT_SUFFIXES = (".json", ".jinja", ".txt", ".md", ".model", ".tiktoken", "")
_WRITTEN_ANEW = (CONFIG_NAME, HF_QUANT_CONFIG, "model.safetensors.index.json", JOURNAL)
_MAX_TEXT_BYTES = 1 << 28


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedCheckpoint:
    """A checkpoint that was written.

    Attributes:
        path: Its folder.
        algorithm: ModelOpt's name of what was done; None where nothing was quantized anew.
        size_bytes: Bytes of its weights.
        stored_bytes: Bytes of the weights it was made from.
        num_tensors: Its tensors.
        resumed_shards: Shards that an earlier run had finished.
        notes: What its user must know, a sentence each.
        kept: What stayed as it was for its error: patterns of modules' names, or kinds of a head's layers.
    """

    path: Path
    algorithm: str | None
    size_bytes: int
    stored_bytes: int
    num_tensors: int
    resumed_shards: int
    notes: tuple[str, ...]
    kept: tuple[str, ...] = ()


def quantize_target(
    target: TargetCheckpoint,
    recipe: LayerRecipe,
    output_path: Path,
    *,
    scales: ActivationScales = NO_SCALES,
    keep_above: float | None = None,
    progress: Progress = lambda _: None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> QuantizedCheckpoint:
    """Write a target as a recipe says; a run that was stopped goes on when it is called again.

    Args:
        target: The target.
        recipe: The recipe.
        output_path: Folder to make.
        scales: Of activations and caches; constant where nothing is given.
        keep_above: Error above which a layer stays as it is, see `leave_out`; None quantizes all.
        progress: Told now and then.
        max_shard_bytes: Where shards are cut.

    Raises:
        CheckpointError: See `plan_target`; or a tensor holds values that are no numbers.
        UsageError: The folder is in use, or the limit leaves nothing quantized.
        PlanError: The limit is no number above 0.
        MachineError: The folder cannot be written.
    """
    path = require_free_name(output_path)
    check_limit(keep_above)
    choice = _choose(plan_target(target, recipe, scales), keep_above, progress, is_head=False)
    plan = plan_target(target, choice.recipe, scales)
    return _write(plan, choice, scales, path, output_path, progress, max_shard_bytes)


def quantize_head(
    drafter: DrafterCheckpoint,
    target: TargetCheckpoint | None,
    recipe: LayerRecipe,
    dialect: HeadDialect,
    output_path: Path,
    *,
    scales: ActivationScales = NO_SCALES,
    keep_above: float | None = None,
    progress: Progress = lambda _: None,
) -> QuantizedCheckpoint:
    """Write a head in a dialect, quantized as a recipe says; see `plan_head` and `quantize_target`."""
    path = require_free_name(output_path)
    check_limit(keep_above)
    if target is not None:
        check_pair(target, drafter)
    choice = _choose(plan_head(drafter, target, recipe, dialect, scales), keep_above, progress, is_head=True)
    plan = plan_head(drafter, target, choice.recipe, dialect, scales)
    return _write(plan, choice, scales, path, output_path, progress, MAX_SHARD_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """What is left of a recipe.

    Attributes:
        recipe: The recipe.
        kept: What was taken out of it.
        notes: What to say about that.
        largest: What the survey found, where it was made for the choice.
    """

    recipe: LayerRecipe
    kept: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    largest: Largest = field(default_factory=dict)


def _choose(plan: CheckpointPlan, keep_above: float | None, progress: Progress, *, is_head: bool) -> _Choice:
    if keep_above is None:
        return _Choice(recipe=plan.recipe)
    with reading_of(plan.read_bytes):
        largest = survey(plan, progress)
        _require_roundable(plan, largest)
        found = leave_out(plan, largest, keep_above, progress, is_head=is_head)
    return _Choice(recipe=found.recipe, kept=found.patterns, notes=(found.note,), largest=largest)


def _write(
    plan: CheckpointPlan,
    choice: _Choice,
    scales: ActivationScales,
    path: Path,
    named_path: Path,
    progress: Progress,
    max_shard_bytes: int,
) -> QuantizedCheckpoint:
    staging = path.with_name(f".{path.name}.partial")
    shards = cut_shards(plan.jobs, max_shard_bytes)
    with locked_folder(staging, f"another process is writing `{path}`"), _keeping_finished(staging):
        journal = _take_up(plan, staging, shards, _identity(plan, scales, list(shards)))
        num_resumed = len(journal.shards)
        missing = [job for name, jobs in shards.items() if name not in journal.shards for job in jobs]
        require_free_space(path.parent, sum(job.length_bytes for job in missing))
        with reading_of(plan.read_bytes):
            if not journal.largest:
                known = {group: choice.largest[group] for group in plan.groups if group in choice.largest}
                journal = msgspec.structs.replace(journal, largest=known or survey(plan, progress))
            _require_roundable(plan, journal.largest)
            _write_shards(staging, shards, journal, progress)
        write_index(staging, shards)
        _write_texts(plan, staging)
        notes = choice.notes + plan.notes + _loader_notes(plan, staging)
        _move(staging, path)
    return QuantizedCheckpoint(
        path=named_path,
        algorithm=plan.algorithm,
        size_bytes=plan.written_bytes,
        stored_bytes=sum(layer.stored_bytes for layer in plan.layers),
        num_tensors=sum(len(job.outputs) for job in plan.jobs),
        resumed_shards=num_resumed,
        notes=notes,
        kept=choice.kept,
    )


def _require_roundable(plan: CheckpointPlan, largest: Largest) -> None:
    for layer in plan.rounded:
        if largest[layer.group] > LARGEST_ROUNDED:
            # Of layers that share a scale, the one that is meant is named.
            require_roundable(layer.spec.name, float(largest_magnitude(layer.spec)))


def _take_up(plan: CheckpointPlan, staging: Path, shards: Shards, identity: str) -> Journal:
    """What an earlier run finished, looked at byte by byte; everything else that it left is removed."""
    journal = read_journal(staging, identity)
    if set(journal.largest) != set(plan.groups):
        journal = Journal(plan=journal.plan)
    finished = {name: journal.shards[name] for name in shards if is_finished(staging / name, journal)}
    for leftover in staging.iterdir():
        if leftover.name not in finished and (leftover.name != JOURNAL or not leftover.is_file()):
            remove_leftover(leftover)
    return msgspec.structs.replace(journal, shards=finished)


def _write_shards(staging: Path, shards: Shards, journal: Journal, progress: Progress) -> None:
    write_journal(staging, journal)
    for number, (name, jobs) in enumerate(shards.items(), 1):
        if name in journal.shards:
            progress(f"shard {number} of {len(shards)} is there already")
            continue
        progress(f"writing shard {number} of {len(shards)}")
        write_shard(staging / name, jobs, journal.largest)
        journal = msgspec.structs.replace(journal, shards={**journal.shards, name: sha256_of(staging / name)})
        write_journal(staging, journal)


def _move(staging: Path, path: Path) -> None:
    # Another process may have finished between the first look and the lock.
    require_free_name(path)
    with naming_os_errors(path):
        if path.exists():
            path.rmdir()
        staging.rename(path)
        # Only now: until the folder has its name, the journal is what another run goes on by.
        (path / JOURNAL).unlink()


@contextmanager
def _keeping_finished(staging: Path) -> Iterator[None]:
    """What a damaged checkpoint left is removed; after anything else, finished shards wait for the next run."""
    try:
        yield
    except CheckpointError:
        remove_folder(staging)
        raise


def _identity(plan: CheckpointPlan, scales: ActivationScales, shard_names: list[str]) -> str:
    """Hash of everything that decides the bytes."""
    files = [
        (path.name, path.stat().st_size, sampled_sha256_of(path) if _is_large(path) else sha256_of(path))
        for path in checkpoint_files(plan.source)
    ]
    outputs = [asdict(output) for job in plan.jobs for output in job.outputs]
    facts = [
        msgspec.to_builtins(plan.recipe),
        files,
        outputs,
        shard_names,
        sorted(scales.values.items()),
        plan.document,
    ]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _is_large(path: Path) -> bool:
    return path.stat().st_size >= SAMPLED_FROM_BYTES


def _write_texts(plan: CheckpointPlan, folder: Path) -> None:
    for path in sorted(plan.source.iterdir()):
        is_text = path.suffix in _TEXT_SUFFIXES and not path.name.startswith(".") and path.name not in _WRITTEN_ANEW
        if is_text and path.is_file() and path.stat().st_size <= _MAX_TEXT_BYTES:
            with naming_os_errors(path):
                shutil.copyfile(path, folder / path.name)
    write_text(folder / CONFIG_NAME, json.dumps(plan.document, indent=2) + "\n")
    if plan.quant_document is not None:
        write_text(folder / HF_QUANT_CONFIG, json.dumps(plan.quant_document, indent=2) + "\n")


def _loader_notes(plan: CheckpointPlan, folder: Path) -> tuple[str, ...]:
    """Which loader would not take the folder, by the loaders' own rules.

    Raises:
        CheckpointError: None would.
    """
    if plan.algorithm is None:
        return ()
    refused = [finding for finding in judge_folder(folder) if finding.level == "refused"]
    loaders = {finding.what.partition(":")[0] for finding in refused}
    if not loaders.issubset(LOADERS) or loaders == set(LOADERS):
        first = refused[0]
        raise CheckpointError(
            f"no loader would take what recipe `{plan.recipe.name}` makes of `{plan.source}`: "
            f"{first.what}: expected {first.expected}, found {first.found}",
            hint=first.hint,
        )
    return tuple(f"{finding.what} refuses it: {finding.found}; {finding.hint}" for finding in refused)
