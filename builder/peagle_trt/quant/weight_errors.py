"""How far the matrices of a build, or of one that is planned, are from their checkpoints', one matrix at a time.

An error is the norm of the difference over the norm of the checkpoint's matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from peagle_trt.quant.activation_scales import NO_SCALES, ActivationScales
from peagle_trt.quant.block_integers import dequantize_blocks, quantize_blocks
from peagle_trt.quant.fp8 import quantize_fp8
from peagle_trt.quant.in_place import BLOCKS
from peagle_trt.quant.layer_recipes import LayerScheme
from peagle_trt.quant.layout import column_scales, drafter_entries, target_entries
from peagle_trt.quant.nvfp4 import dequantize_nvfp4, quantize_nvfp4
from peagle_trt.quant.packing import BLOCK_SCALES, INTEGER_BITS, SCALE, StoredTensor, is_packed_by
from peagle_trt.quant.registry import find_recipe
from peagle_trt.quant.store import StoredWeights
from peagle_trt.quant.unpacking import integer_bits, load_unpacked
from peagle_trt.readers import DrafterCheckpoint, TargetCheckpoint
from peagle_trt.readers.float_codes import decode_e4m3

Model = Literal["target", "drafter"]
_FORMS = {"BF16": "bf16", "F16": "fp16", "F32": "fp32"}
_ROWS_AT_ONCE = 4096


class WeightError(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A matrix that a build does not hold as float32.

    Attributes:
        model: Whose it is.
        name: Its stored name.
        form: What it is stored as.
        error: Norm of the difference over the norm of the checkpoint's matrix; 0 where it is the checkpoint's own.
    """

    model: Model
    name: str
    form: str
    error: float


def measure_build(
    precision: str,
    target: TargetCheckpoint,
    drafter: DrafterCheckpoint,
    stored_target: StoredWeights,
    stored_drafter: StoredWeights,
) -> list[WeightError]:
    """Read what a build stores and compare it with what it was made of; one matrix is in memory at a time.

    Experts that stay in MXFP4 are the checkpoint's own bytes. A recipe that leaves every weight in place has nothing to
    compare.
    """
    if find_recipe(precision).weight_type is None:
        return []
    return [
        *_measure_stored("target", target_entries(target, precision), stored_target),
        *(
            WeightError(model="target", name=name.removesuffix(BLOCKS), form="mxfp4", error=0.0)
            for name in stored_target
            if name.endswith(BLOCKS)
        ),
        *_measure_stored("drafter", drafter_entries(drafter, target), stored_drafter),
    ]


def predict_errors(
    precision: str,
    target: TargetCheckpoint,
    drafter: DrafterCheckpoint,
    target_scales: ActivationScales = NO_SCALES,
    drafter_scales: ActivationScales = NO_SCALES,
) -> list[WeightError]:
    """The errors of the matrices that a recipe puts codes in the place of, before anything is written.

    Args:
        precision: The recipe.
        target: The target.
        drafter: The drafter.
        target_scales: The target's calibrated scales, of which those of columns matter.
        drafter_scales: The drafter's.

    Raises:
        CheckpointError: A matrix holds a value that is no number, or cannot be cut into blocks.
    """
    recipe = find_recipe(precision)

    def target_columns(entry: StoredTensor) -> NDArray[np.float32] | None:
        return column_scales(entry, recipe, recipe.target_scheme(entry.name), target_scales, "model.")

    def drafter_columns(entry: StoredTensor) -> NDArray[np.float32] | None:
        return column_scales(entry, recipe, recipe.drafter_scheme(entry.name), drafter_scales, "")

    return [
        *_predict("target", target_entries(target, precision), recipe.target_scheme, target_columns),
        *_predict("drafter", drafter_entries(drafter, target), recipe.drafter_scheme, drafter_columns),
    ]


def worst(errors: Sequence[WeightError], count: int) -> list[WeightError]:
    """The largest errors, largest first."""
    return sorted(errors, key=lambda each: (-each.error, each.model, each.name))[:count]


def relative_error(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    """Norm of the difference over the norm of `wanted`; 0 where both are zeros, and nan where either is no number.

    Args:
        found: Any shape.
        wanted: The same.
    """
    columns = wanted.shape[-1]
    flat_found, flat_wanted = found.reshape(-1, columns), wanted.reshape(-1, columns)
    difference = total = 0.0
    for first in range(0, len(flat_wanted), _ROWS_AT_ONCE):
        rows = flat_wanted[first : first + _ROWS_AT_ONCE].astype(np.float64)
        total += float(np.square(rows).sum())
        difference += float(np.square(flat_found[first : first + _ROWS_AT_ONCE] - rows).sum())
    if total == 0:
        return float(np.sqrt(difference)) and float("inf")
    return float(np.sqrt(difference / total))


def _measure_stored(model: Model, entries: Iterable[StoredTensor], stored: StoredWeights) -> Iterator[WeightError]:
    for entry in entries:
        # A tied output layer that was left out is the table.
        if len(entry.shape) < 2 or entry.name not in stored:
            continue
        form = form_of(stored, entry.name)
        if form != "fp32":
            error = relative_error(_as_float32(load_unpacked(stored, entry.name)), _as_float32(entry.produce()))
            yield WeightError(model=model, name=entry.name, form=form, error=error)


def _predict(
    model: Model,
    entries: Iterable[StoredTensor],
    scheme_of: Callable[[str], LayerScheme],
    columns_of: Callable[[StoredTensor], NDArray[np.float32] | None],
) -> Iterator[WeightError]:
    for entry in entries:
        scheme = scheme_of(entry.name)
        if not is_packed_by(scheme):
            continue
        values, columns = _as_float32(entry.produce()), columns_of(entry)
        found = _rounded(values, scheme) if columns is None else _rounded(values / columns, scheme) * columns
        error = relative_error(found, values)
        yield WeightError(model=model, name=entry.name, form=scheme.weights, error=error)


def _rounded(values: NDArray[np.float32], scheme: LayerScheme) -> NDArray[np.float32]:
    """What a matrix is worth after a recipe has put codes in its place."""
    if scheme.weights in INTEGER_BITS:
        return dequantize_blocks(quantize_blocks(values, INTEGER_BITS[scheme.weights]))
    if scheme.weights == "fp8":
        packed = quantize_fp8(values)
        numbers: NDArray[np.float32] = decode_e4m3(packed.codes) * packed.scale
        return numbers
    return dequantize_nvfp4(quantize_nvfp4(values))


def form_of(stored: StoredWeights, name: str) -> str:
    """What a matrix is stored as: int4, int8, fp8, nvfp4, bf16, fp16 or fp32."""
    bits = integer_bits(stored, name)
    if bits is not None:
        return f"int{bits}"
    if f"{name}{BLOCK_SCALES}" in stored:
        return "nvfp4"
    return "fp8" if f"{name}{SCALE}" in stored else _FORMS[stored[name].dtype]


def _as_float32(values: NDArray[np.generic]) -> NDArray[np.float32]:
    return values.astype(np.float32, copy=False)
