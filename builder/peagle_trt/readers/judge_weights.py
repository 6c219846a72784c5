"""Whether a head's weights look trained, from a few rows of each table."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from peagle_trt.readers.checkpoint import DrafterCheckpoint, TargetCheckpoint
from peagle_trt.readers.findings import Finding, judged
from peagle_trt.readers.rows import load_rows, spread_rows

_SAMPLED_ROWS = 64
_STANDARD_ERRORS = 4.0
"""A sample of the very start strays further once in ten thousand times."""
_RANDOM_COSINE = 0.1
"""Rows of unrelated tables have cosines around 0; rows of a table and one that grew out of it, near 1."""


def judge_mask_state(drafter: DrafterCheckpoint) -> list[Finding]:
    """Whether `mask_hidden` has moved away from its start.

    Source: speculators, Automodel and SpecForge start it as N(0, 1). Of n such numbers the mean has a standard error of
        1 / sqrt(n) and the deviation one of 1 / sqrt(2 n).
    """
    if not drafter.config.is_parallel:
        return []
    values = drafter.weights.load("mask_hidden").astype(np.float64)
    count, mean, deviation = values.size, float(values.mean()), float(values.std())
    is_start = (
        abs(mean) * math.sqrt(count) < _STANDARD_ERRORS
        and abs(deviation - 1.0) * math.sqrt(2 * count) < _STANDARD_ERRORS
    )
    return [
        judged(
            not is_start and deviation > 0.0,
            "`mask_hidden`",
            found=f"mean {mean:.3g}, deviation {deviation:.3g} of {count} numbers",
            expected="not constant, and not what training starts from: mean 0, deviation 1",
            hint="it looks untrained: drafts after the first will be poor",
            otherwise="warning",
        )
    ]


def judge_tables(drafter: DrafterCheckpoint, target: TargetCheckpoint) -> list[Finding]:
    """Whether the embedding table and its row for the mask token belong to the target and were trained.

    Args:
        drafter: The head.
        target: Its target, of the same vocabulary; rows are compared where the widths agree.
    """
    config = drafter.config
    if not config.has_own_embeddings:
        return [_shared_mask_row()] if config.is_parallel else []
    own, theirs = drafter.weights["embed_tokens"].spec, target.weights["embed_tokens"].spec
    if own.shape != theirs.shape:
        return []
    rows = spread_rows(own.shape[0], _SAMPLED_ROWS)
    findings = [_judge_likeness(load_rows(own, rows), load_rows(theirs, rows))]
    if config.is_parallel and config.mask_token_id < own.shape[0]:
        row = [config.mask_token_id]
        is_moved = not np.array_equal(load_rows(own, row), load_rows(theirs, row))
        findings.append(_mask_row(is_moved))
    return findings


def _shared_mask_row() -> Finding:
    return Finding(
        level="note",
        what="mask token's embedding",
        found="the target's own row; the head carries no table",
        expected="a row that was trained with the head, or a head that was trained with this one",
    )


def _mask_row(is_moved: bool) -> Finding:
    return judged(
        is_moved,
        "mask token's embedding",
        found="a row of its own" if is_moved else "equal to the target's row",
        expected="a row that was trained with the head",
        hint="it looks untrained, unless the table was frozen on purpose; training it is worth some 5 % of the length",
        otherwise="warning",
    )


def _judge_likeness(own: NDArray[np.float32], theirs: NDArray[np.float32]) -> Finding:
    num_equal = int(np.all(own == theirs, axis=1).sum())
    norms = np.linalg.norm(own, axis=1) * np.linalg.norm(theirs, axis=1)
    cosine = float(np.mean(np.sum(own * theirs, axis=1) / np.maximum(norms, np.finfo(np.float32).tiny)))
    found = f"{num_equal} of {len(own)} sampled rows equal the target's, mean cosine {cosine:.2f}"
    what, expected = "embedding table", "the target's, or one that grew out of it"
    if num_equal == len(own):
        hint = "the same rows could be shared; only the mask token's may differ"
        return Finding(level="note", what=what, found=found, expected=expected, hint=hint)
    hint = "the table looks random, or belongs to another target"
    return judged(cosine > _RANDOM_COSINE, what, found=found, expected=expected, hint=hint, otherwise="warning")
