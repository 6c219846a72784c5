"""Calibration from end to end: a target, its drafter and prompts in, files of scales out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from peagle_trt.errors import UsageError
from peagle_trt.files import require_writable
from peagle_trt.quant.calibration import (
    DrafterMaxima,
    calibrate_drafter,
    calibrate_target,
    find_calibration,
    write_scales,
)
from peagle_trt.quant.calibration.target import ANSWER_TOKENS
from peagle_trt.readers import read_drafter

if TYPE_CHECKING:
    from peagle_trt.quant.calibration import Scales
    from peagle_trt.quant.calibration.model import TargetStreams

NUM_PROMPTS = 32
"""Prompts where nobody says how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationReport:
    """What was written.

    Attributes:
        target: The target's scales.
        drafter: The drafter's, or None.
        drafter_maxima: What they come from, by module.
        dead_experts: Experts that no token was sent to.
    """

    target: Scales
    drafter: Scales | None
    drafter_maxima: dict[str, DrafterMaxima]
    dead_experts: tuple[str, ...]


def calibrate(
    target_path: Path,
    recipe: str,
    prompts: str,
    output_path: Path,
    *,
    drafter_path: Path | None = None,
    drafter_output_path: Path | None = None,
    num_prompts: int = NUM_PROMPTS,
    answer_tokens: int = ANSWER_TOKENS,
    draft_tokens: int = 5,
    allows_dead_experts: bool = False,
    report: Callable[[str], None] = lambda line: None,
) -> CalibrationReport:
    """Calibrate a target, and its drafter on the target's hidden states.

    Args:
        target_path: Hugging Face folder.
        recipe: One of `CALIBRATIONS`.
        prompts: Name of a shipped set, or a file; see `read_prompts`.
        output_path: File of the target's scales.
        drafter_path: Head to calibrate too.
        drafter_output_path: File of its scales.
        num_prompts: Prompts to take from the start.
        answer_tokens: Longest answer that the target adds to each.
        draft_tokens: K of the drafter's steps.
        allows_dead_experts: Accept experts that saw nothing.
        report: Told of every step.

    Raises:
        PeagleError: Anything that makes the scales worthless; nothing is written then.
    """
    from peagle_trt.bench.prompt_sets import read_prompts
    from peagle_trt.readers import check_pair, read_target

    find_calibration(recipe)
    _require_numbers(num_prompts=num_prompts, answer_tokens=answer_tokens, draft_tokens=draft_tokens)
    _require_outputs(output_path, drafter_output_path)
    turns = read_prompts(prompts, num_prompts).prompts
    drafter = read_drafter(drafter_path) if drafter_path else None
    if drafter is not None:
        check_pair(read_target(target_path), drafter)
    report(f"{len(turns)} prompts of `{prompts}` through `{target_path}`")
    run = calibrate_target(
        target_path,
        recipe,
        turns,
        answer_tokens=answer_tokens,
        stream_layers=drafter.config.aux_layer_ids if drafter else (),
        allows_dead_experts=allows_dead_experts,
    )
    report(f"{len(run.scales.values):,} scales from {run.scales.num_tokens:,} tokens")
    scales, maxima = None, dict[str, DrafterMaxima]()
    if drafter_path is not None:
        report("the drafter, over steps with mask slots")
        scales, maxima = _calibrate_drafter(target_path, drafter_path, run.streams, recipe, draft_tokens)
    write_scales(run.scales, output_path)
    if scales is not None and drafter_output_path is not None:
        notes = json.dumps({module: asdict(found) for module, found in maxima.items()})
        write_scales(replace(scales, notes={**scales.notes, "maxima": notes}), drafter_output_path)
    return CalibrationReport(target=run.scales, drafter=scales, drafter_maxima=maxima, dead_experts=run.dead_experts)


def _require_numbers(**numbers: int) -> None:
    for name, value in numbers.items():
        if value < 1:
            raise UsageError(f"--{name.replace('_', '-')} is {value}; expected 1 or more", hint="leave it out")


def _require_outputs(output_path: Path, drafter_output_path: Path | None) -> None:
    """Refuse now what would lose the scales after hours."""
    require_writable(output_path)
    if drafter_output_path is None:
        return
    require_writable(drafter_output_path)
    if os.path.realpath(output_path) == os.path.realpath(drafter_output_path):
        raise UsageError(
            f"`{output_path}` is to hold the scales of the target and of the drafter", hint="name two files"
        )


def _calibrate_drafter(
    target_path: Path, drafter_path: Path, streams: Sequence[TargetStreams], recipe: str, draft_tokens: int
) -> tuple[Scales, dict[str, DrafterMaxima]]:
    from peagle_trt.readers import read_target
    from peagle_trt.verify.reference import run_drafter
    from peagle_trt.verify.sources import checkpoint_source

    target, drafter = read_target(target_path), read_drafter(drafter_path)
    source = checkpoint_source(target, drafter)
    return calibrate_drafter(
        drafter.config, source.load_drafter, streams, recipe_name=recipe, draft=run_drafter, draft_tokens=draft_tokens
    )
