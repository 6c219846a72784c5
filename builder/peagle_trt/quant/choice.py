"""Which recipe a target gets when nobody names one, and the writing that a recipe stands for."""

from __future__ import annotations

from pathlib import Path

from peagle_trt.errors import CheckpointError
from peagle_trt.quant.layout import target_layout
from peagle_trt.quant.registry import MAX_AUTOMATIC_BYTES, find_recipe
from peagle_trt.quant.store import (
    StoredWeights,
    link_drafter_weights,
    link_target_weights,
    stored_bytes,
    target_references,
    write_drafter_weights,
    write_target_weights,
)
from peagle_trt.readers import DrafterCheckpoint, TargetCheckpoint


def choose_recipe(target: TargetCheckpoint) -> tuple[str, str]:
    """The recipe for someone who named none, and why; the same on every machine."""
    needed = float32_bytes(target)
    if needed <= MAX_AUTOMATIC_BYTES:
        return "fp32", f"the target takes {needed:,} bytes as float32"
    if _can_stay_in_place(target):
        return "native", f"the target would take {needed:,} bytes as float32; its own are read in place"
    return "fp32", f"the target takes {needed:,} bytes as float32, and its own cannot be read in place"


def float32_bytes(target: TargetCheckpoint) -> int:
    """What a target's weights take as float32."""
    return stored_bytes(target_layout(target))


def is_in_place(precision: str) -> bool:
    """Whether a recipe leaves weights in the checkpoint's files.

    Raises:
        UsageError: There is no recipe of that name.
    """
    return find_recipe(precision).weight_type is None


def store_target(precision: str, target: TargetCheckpoint, path: Path) -> StoredWeights:
    """Write a target's weights, or leave them where they are; see `write_target_weights`, `link_target_weights`."""
    store = link_target_weights if is_in_place(precision) else write_target_weights
    return store(target, path)


def store_drafter(precision: str, drafter: DrafterCheckpoint, target: TargetCheckpoint, path: Path) -> StoredWeights:
    """The same for a drafter; see `write_drafter_weights`, `link_drafter_weights`."""
    store = link_drafter_weights if is_in_place(precision) else write_drafter_weights
    return store(drafter, target, path)


def _can_stay_in_place(target: TargetCheckpoint) -> bool:
    try:
        target_references(target)
    except CheckpointError:
        return False
    return True
