"""Leaves out of a checkpoint what rounding would move too far, with everything that loaders multiply with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from peagle_trt.errors import UsageError
from peagle_trt.quant.layer_recipes import AS_STORED, LayerRecipe
from peagle_trt.quant.stored_floats import Bits, pieces, to_float32
from peagle_trt.quant.stream_codes import fp8_encoder, fp8_scale, nvfp4_codes, nvfp4_scale
from peagle_trt.readers.float_codes import decode_e2m1, decode_e4m3
from peagle_trt.readers.packed import NVFP4_BLOCK
from peagle_trt.readers.safetensors_file import entry_of
from peagle_trt.writers.fused import fused_name
from peagle_trt.writers.quantized.jobs import Largest
from peagle_trt.writers.quantized.plan import CheckpointPlan
from peagle_trt.writers.quantized.planner import Rounded

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """What a limit leaves of a recipe.

    Attributes:
        recipe: The recipe without it.
        patterns: What stays as it is, as patterns of modules' names, or kinds of a head's layers.
        note: A line for people.
    """

    recipe: LayerRecipe
    patterns: tuple[str, ...]
    note: str


def leave_out(
    plan: CheckpointPlan, largest: Largest, keep_above: float, progress: Callable[[str], None], *, is_head: bool
) -> LeftOut:
    """Round every matrix of a plan once, a piece at a time; take out of its recipe what is further off than a limit.

    Queries, keys and values stay together, gate and up do, and so do all experts of a layer. Loaders number a head's
    layers as they like, so of a head a kind of layer stays in all its layers.

    Args:
        plan: The plan with everything in it.
        largest: What the survey found.
        keep_above: Largest error that is quantized; see `weight_errors`.
        progress: Told now and then.
        is_head: It is a head's.

    Raises:
        UsageError: The recipe quantizes nothing, or would not with this limit.
    """
    errors = weight_errors(plan, largest, progress)
    if not errors:
        raise UsageError(
            f"recipe `{plan.recipe.name}` rounds nothing of `{plan.source}`, so --keep-above has nothing to leave out",
            hint="leave it out, or take fp8 or nvfp4",
        )
    group_of = {each.module: each.kind if is_head else fused_name(each.module) for each in plan.rounded}
    above = {module: error for module, error in errors.items() if error > keep_above}
    groups = list(dict.fromkeys(group_of[module] for module in above))
    num_kept = sum(group_of[module] in set(groups) for module in errors)
    is_cast = any(layer.weights == "nvfp4" and layer.module not in errors for layer in plan.layers)
    if num_kept == len(errors) and not is_cast:
        raise UsageError(
            f"--keep-above {keep_above:g} leaves nothing quantized of `{plan.source}`: recipe `{plan.recipe.name}` "
            f"moves every layer, or one that is multiplied with it, by more; the least is {min(errors.values()):.2g}",
            hint="take a larger limit, or a recipe of more bits",
        )
    patterns = tuple(groups) if is_head else tuple(_pattern(group) for group in groups)
    return LeftOut(
        recipe=_without(plan.recipe, patterns, is_head=is_head),
        patterns=patterns,
        note=_note(errors, above, num_kept, keep_above),
    )


def weight_errors(plan: CheckpointPlan, largest: Largest, progress: Callable[[str], None]) -> dict[str, float]:
    """Norm of the difference over the norm of the matrix, by module, of everything that a plan rounds.

    Args:
        plan: The plan.
        largest: What the survey found.
        progress: Told now and then.
    """
    errors = {}
    for index, each in enumerate(plan.rounded):
        if index % 1000 == 0:
            progress(f"weighing layers: {index:,} of {len(plan.rounded):,}")
        difference = total = 0.0
        for found, wanted in _rounded_pieces(each, largest):
            difference += float(np.square(found - wanted, dtype=np.float64).sum())
            total += float(np.square(wanted, dtype=np.float64).sum())
        errors[each.module] = (difference / total) ** 0.5 if total else 0.0
    return errors


def _rounded_pieces(each: Rounded, largest: Largest) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """What numbers become and what they were, some at a time."""
    spec, peak = each.spec, np.float32(largest[each.group])
    if each.weights == "fp8":
        scale = fp8_scale(peak)
        encode = fp8_encoder(spec.dtype, scale)
        for bits in pieces(spec):
            yield decode_e4m3(encode(bits)) * scale, to_float32(bits, spec.dtype)
        return
    scale = nvfp4_scale(peak)
    for bits in _turned_pieces(each) if each.is_stack else pieces(spec):
        codes, block_scales = nvfp4_codes(bits, spec.dtype, scale)
        blocks = decode_e2m1(codes).reshape(-1, NVFP4_BLOCK)
        yield (blocks * (decode_e4m3(block_scales) * scale)[:, None]).reshape(-1), to_float32(bits, spec.dtype)


def _turned_pieces(each: Rounded) -> Iterator[Bits]:
    """An expert at a time of a stack [E, C, N], its rows along C, which blocks are cut from."""
    count, columns, rows = each.spec.shape
    for expert in range(count):
        bits = np.concatenate(list(pieces(entry_of(each.spec, expert)))).reshape(columns, rows)
        yield np.ascontiguousarray(bits.T).reshape(-1)


def _pattern(group: str) -> str:
    """Fits every module that was fused into a group."""
    parent, _, last = group.rpartition(".")
    fused = {"qkv_proj": f"{parent}.[qkv]_proj", "gate_up_proj": f"{parent}.[gu]*_proj", "experts": f"{group}.*"}
    return fused.get(last, group)


def _without(recipe: LayerRecipe, patterns: tuple[str, ...], *, is_head: bool) -> LayerRecipe:
    if is_head:
        changes: Mapping[str, object] = dict.fromkeys(patterns, AS_STORED)
        return msgspec.structs.replace(recipe, drafter=msgspec.structs.replace(recipe.drafter, **changes))
    keep = (*recipe.target.keep, *patterns)
    return msgspec.structs.replace(recipe, target=msgspec.structs.replace(recipe.target, keep=keep))


def _note(errors: Mapping[str, float], above: Mapping[str, float], num_kept: int, keep_above: float) -> str:
    worst = sorted((above or errors).items(), key=lambda item: (-item[1], item[0]))
    if not above:
        module, error = worst[0]
        return (
            f"--keep-above {keep_above:g} leaves nothing out: the worst of {len(errors):,} layers, `{module}`, is "
            f"{error:.2g} off"
        )
    shown = ", ".join(f"`{module}` ({error:.2g})" for module, error in worst[:_SHOWN])
    more = f" and {len(above) - _SHOWN:,} more" if len(above) > _SHOWN else ""
    return (
        f"{num_kept:,} of {len(errors):,} layers stay as they are, those above {keep_above:g} and what is multiplied "
        f"with them: {shown}{more}"
    )
