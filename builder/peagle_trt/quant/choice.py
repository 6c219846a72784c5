"""Which recipe a target gets when nobody names one, and the writing that a recipe stands for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from peagle_trt.errors import CheckpointError, UsageError
from peagle_trt.quant.activation_scales import NO_SCALES, ActivationScales
from peagle_trt.quant.layout import drafter_layout, kept_in_place, target_layout
from peagle_trt.quant.left_out import NOTHING_LEFT_OUT, LeftOut
from peagle_trt.quant.packing import StoredTensor
from peagle_trt.quant.registry import MAX_AUTOMATIC_BYTES, find_recipe
from peagle_trt.quant.store import (
    StoredWeights,
    drafter_additions,
    drafter_references,
    kept_references,
    link_drafter_weights,
    link_target_weights,
    stored_bytes,
    target_references,
    write_drafter_weights,
    write_target_weights,
)
from peagle_trt.readers import DrafterCheckpoint, TargetCheckpoint
from peagle_trt.spec import TensorSpec


def choose_recipe(target: TargetCheckpoint, backend: str = "onnxruntime") -> tuple[str, str]:
    """The recipe for someone who named none, and why; the same on every machine."""
    if backend != "onnxruntime":
        return "bf16", f"{backend} has kernels for it, and nothing is lost of a bfloat16 checkpoint"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """What storing a pair will write and share.

    Attributes:
        layout: Tensors that are written.
        references: Tensors that stay in a checkpoint's files, the target's and the drafter's.
    """

    layout: list[StoredTensor]
    references: tuple[Mapping[str, TensorSpec], ...]


def plan_storage(
    precision: str,
    target: TargetCheckpoint,
    drafter: DrafterCheckpoint,
    *,
    target_scales: ActivationScales = NO_SCALES,
    drafter_scales: ActivationScales = NO_SCALES,
    left_out: LeftOut = NOTHING_LEFT_OUT,
) -> Storage:
    """What `store_target` and `store_drafter` will do.

    Raises:
        CheckpointError: The recipe cannot store a tensor, one cannot be read in place, or scales do not fit.
    """
    _require_quantized_activations(precision, target_scales, drafter_scales)
    if is_in_place(precision):
        references = (target_references(target), drafter_references(drafter))
        return Storage(layout=drafter_additions(drafter, target), references=references)
    layout = [
        *target_layout(target, precision, target_scales, left_out=left_out.target),
        *drafter_layout(drafter, target, precision, drafter_scales, left_out=left_out.drafter),
    ]
    return Storage(layout=layout, references=(kept_references(target, precision),))


def describe_kept_experts(precision: str, target: TargetCheckpoint) -> str:
    """What a build that writes weights leaves in the checkpoint's MXFP4, in words, or ""."""
    kept = kept_in_place(target, precision)
    if is_in_place(precision) or not kept:
        return ""
    weights = sum(math.prod(target.weights[name].shape) for name in kept)
    text = f"{len(kept)} stacks of experts, {weights:,} weights, stay in the checkpoint's MXFP4 words"
    if find_recipe(precision).target.experts.weights != "nvfp4":
        return text
    return f"{text}: cast to NVFP4 they would be the same numbers at best, in 6 % more bytes"


def store_target(
    precision: str,
    target: TargetCheckpoint,
    path: Path,
    scales: ActivationScales = NO_SCALES,
    left_out: LeftOut = NOTHING_LEFT_OUT,
) -> StoredWeights:
    """Write a target's weights, or leave them where they are; see `write_target_weights`, `link_target_weights`."""
    if is_in_place(precision):
        return link_target_weights(target, path)
    return write_target_weights(target, path, precision, scales, left_out=left_out.target)


def store_drafter(
    precision: str,
    drafter: DrafterCheckpoint,
    target: TargetCheckpoint,
    path: Path,
    scales: ActivationScales = NO_SCALES,
    left_out: LeftOut = NOTHING_LEFT_OUT,
) -> StoredWeights:
    """The same for a drafter; see `write_drafter_weights`, `link_drafter_weights`."""
    if is_in_place(precision):
        return link_drafter_weights(drafter, target, path)
    return write_drafter_weights(drafter, target, path, precision, scales, left_out=left_out.drafter)


def _require_quantized_activations(precision: str, *scales: ActivationScales) -> None:
    given = [each for each in scales if each.path is not None]
    if given and not find_recipe(precision).rounds_activations:
        raise UsageError(
            f"`{given[0].path}` holds scales of activations, which precision `{precision}` leaves alone",
            hint="leave the file out, or build with --precision fp8, nvfp4 or nvfp4-mlp",
        )


def _can_stay_in_place(target: TargetCheckpoint) -> bool:
    try:
        target_references(target)
    except CheckpointError:
        return False
    return True
