"""A matrix of float32 as the tensors that a number format stores in its place.

`NAME` holds the codes. FP8 adds `NAME.scale`; NVFP4 adds `NAME.block_scales` and `NAME.global_scale`; integers add
`NAME.integer_scales` and `NAME.zero_points`. Where activations are quantized too, `NAME.input_scale` is their scale if
it was calibrated. If it was not, `NAME.row_input_scale` is their scale after every row was divided by one of its own,
which the graph measures as it comes. `NAME.column_scales` is what the matrix's columns were divided by before they were
rounded, so that its input is to be multiplied by them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from peagle_trt.errors import CheckpointError
from peagle_trt.quant.block_integers import INTEGER_BLOCK, quantize_blocks, zero_point_bytes
from peagle_trt.quant.fp8 import quantize_fp8
from peagle_trt.quant.layer_recipes import LayerScheme
from peagle_trt.quant.magnitudes import roundable
from peagle_trt.quant.nvfp4 import global_scale, quantize_nvfp4
from peagle_trt.readers.packed import NVFP4_BLOCK

SCALE, BLOCK_SCALES, GLOBAL_SCALE = ".scale", ".block_scales", ".global_scale"
INPUT_SCALE, ROW_INPUT_SCALE = ".input_scale", ".row_input_scale"
COLUMN_SCALES = ".column_scales"
INTEGER_SCALES, ZERO_POINTS = ".integer_scales", ".zero_points"
"""Behind a tensor's name."""
UNCALIBRATED_INPUT_SCALE = 1.0
"""Rows are first divided by a scale of their own, so that the largest number of each is the format's largest.

Measured on SmolLM2-135M, 160 tokens, KL against bfloat16: FP8 0.106 without scales of rows, which cut off what lies
beyond 448, and 0.039 with them.
"""

INTEGER_BITS = {"int4": 4, "int8": 8}
"""Bits of an integer, by the form of a recipe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor to be written.

    Attributes:
        name: Stored name.
        dtype: F32, F16, BF16, I64, U8 or F8_E4M3.
        shape: Dimensions, outermost first.
        produce: Makes it; called once, just before it is written. BF16 comes as uint16 and F8_E4M3 as uint8, for numpy
            has no such types.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    produce: Callable[[], NDArray[np.generic]]


def is_packed_by(scheme: LayerScheme) -> bool:
    """Whether a scheme puts several tensors into a matrix's place."""
    return scheme.weights not in ("stored", "bf16")


def pack(tensor: StoredTensor, scheme: LayerScheme, input_scale: float | None = None) -> list[StoredTensor]:
    """The tensors that stand for one of float32.

    Args:
        tensor: [rows, columns], or a stack of such matrices where `scheme` is NVFP4.
        scheme: One for which `is_packed_by`.
        input_scale: Calibrated scale of the matrix's input, or None.

    Raises:
        CheckpointError: Its rows cannot be cut into blocks; or, when it is made, see `require_roundable`.
    """
    if scheme.weights in INTEGER_BITS:
        return _pack_integers(tensor, INTEGER_BITS[scheme.weights])
    stored = _pack_fp8(tensor) if scheme.weights == "fp8" else _pack_nvfp4(tensor)
    # A stack is of experts, whose activations are left alone.
    if scheme.activations == "none" or len(tensor.shape) != 2:
        return stored
    suffix, value = (ROW_INPUT_SCALE, UNCALIBRATED_INPUT_SCALE) if input_scale is None else (INPUT_SCALE, input_scale)
    return [*stored, _number(f"{tensor.name}{suffix}", value)]


def divide_columns(tensor: StoredTensor, scales: NDArray[np.float32]) -> tuple[StoredTensor, StoredTensor]:
    """A matrix whose columns are divided by scales, to be packed; and the scales."""
    divided = replace(tensor, produce=lambda: tensor.produce().astype(np.float32) / scales)
    kept = StoredTensor(name=f"{tensor.name}{COLUMN_SCALES}", dtype="F32", shape=scales.shape, produce=lambda: scales)
    return divided, kept


def _pack_integers(tensor: StoredTensor, bits: int) -> list[StoredTensor]:
    rows, _ = tensor.shape
    blocks = _count_blocks(tensor, INTEGER_BLOCK, "use precision `fp32` or `bf16`")

    def make() -> dict[str, NDArray[np.generic]]:
        packed = quantize_blocks(roundable(tensor.name, tensor.produce()), bits)
        return {"": packed.codes, INTEGER_SCALES: packed.scales, ZERO_POINTS: packed.zero_points}

    pieces = _Pieces(make)
    return [
        pieces.tensor(tensor.name, "", "U8", (rows, blocks, INTEGER_BLOCK * bits // 8)),
        pieces.tensor(tensor.name, INTEGER_SCALES, "F32", (rows, blocks)),
        pieces.tensor(tensor.name, ZERO_POINTS, "U8", (rows, zero_point_bytes(blocks, bits))),
    ]


def _pack_fp8(tensor: StoredTensor) -> list[StoredTensor]:
    def make() -> dict[str, NDArray[np.generic]]:
        packed = quantize_fp8(roundable(tensor.name, tensor.produce()))
        return {"": packed.codes, SCALE: packed.scale}

    pieces = _Pieces(make)
    return [
        pieces.tensor(tensor.name, "", "F8_E4M3", tensor.shape),
        pieces.tensor(tensor.name, SCALE, "F32", ()),
    ]


def _pack_nvfp4(tensor: StoredTensor) -> list[StoredTensor]:
    *lead, columns = tensor.shape
    blocks = _count_blocks(tensor, NVFP4_BLOCK, "use precision `fp8` or `bf16`")

    def make() -> dict[str, NDArray[np.generic]]:
        values = roundable(tensor.name, tensor.produce())
        packed = quantize_nvfp4(values, global_scale(values))
        return {"": packed.codes, BLOCK_SCALES: packed.block_scales, GLOBAL_SCALE: packed.global_scale}

    pieces = _Pieces(make)
    return [
        pieces.tensor(tensor.name, "", "U8", (*lead, columns // 2)),
        pieces.tensor(tensor.name, BLOCK_SCALES, "F8_E4M3", (*lead, blocks)),
        pieces.tensor(tensor.name, GLOBAL_SCALE, "F32", ()),
    ]


def _count_blocks(tensor: StoredTensor, block: int, hint: str) -> int:
    columns = tensor.shape[-1]
    if columns % block:
        raise CheckpointError(
            f"`{tensor.name}` has {columns} columns, which blocks of {block} do not divide", hint=hint
        )
    return columns // block


def _number(name: str, value: float) -> StoredTensor:
    return StoredTensor(name=name, dtype="F32", shape=(), produce=lambda: np.array(value, np.float32))


class _Pieces:
    """Several tensors that are made at once, when the first is asked for; each is let go as it is taken."""

    def __init__(self, make: Callable[[], dict[str, NDArray[np.generic]]]) -> None:
        self._make = make
        self._made: dict[str, NDArray[np.generic]] = {}

    def tensor(self, name: str, suffix: str, dtype: str, shape: tuple[int, ...]) -> StoredTensor:
        """A piece as a tensor to be written."""
        return StoredTensor(name=f"{name}{suffix}", dtype=dtype, shape=shape, produce=lambda: self._take(suffix))

    def _take(self, suffix: str) -> NDArray[np.generic]:
        if suffix not in self._made:
            self._made = self._make()
        return self._made.pop(suffix)
