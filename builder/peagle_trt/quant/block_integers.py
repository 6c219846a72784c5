"""Blocks of 32 integers of 4 or 8 bits with a scale and a zero point each, as ONNX Runtime's MatMulNBits reads them.

Letters: N rows, C columns, B blocks of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

INTEGER_BLOCK = 32
"""Columns of a block. Measured with ONNX Runtime 1.32 (AVX2): with 32 a row has the same bits alone and among others,
with 64 and 128 it has not, and a verify step must see what single steps see."""

# Shares of a block's range that its 15 steps may span: cutting off the ends makes the steps finer. On SmolLM2-135M the
# best of these leaves an error of 7.5 % where the whole range leaves 8.4 and a range around zero 9.0. Of 255 steps the
# whole range is best.
_RANGES = {4: (1.0, 0.98, 0.95, 0.92, 0.89, 0.86, 0.82), 8: (1.0,)}
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockIntegers:
    """A matrix as integers: a number is `(code - zero point) * scale`.

    Attributes:
        codes: [N, B, 32 * bits / 8] uint8; of two codes in a byte the first is the low half.
        scales: [N, B] float32.
        zero_points: [N, ceil(B * bits / 8)] uint8, packed as the codes.
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.float32]
    zero_points: NDArray[np.uint8]

    @property
    def bits(self) -> int:
        """Of an integer."""
        return self.codes.shape[2] * 8 // INTEGER_BLOCK


def quantize_blocks(matrix: NDArray[np.float32], bits: int) -> BlockIntegers:
    """The integers nearest to a matrix, under the range of every block that leaves the smallest squared error.

    Args:
        matrix: [N, C] float32, finite; C a multiple of 32.
        bits: 4 or 8.

    Raises:
        ValueError: The columns do not make blocks.
    """
    num_rows, num_columns = matrix.shape
    if num_columns % INTEGER_BLOCK:
        raise ValueError(f"rows of {num_columns} make no blocks of {INTEGER_BLOCK}")
    parts = [_quantize_rows(matrix[first : first + _ROWS_AT_ONCE], bits) for first in range(0, num_rows, _ROWS_AT_ONCE)]
    codes, scales, zero_points = (np.concatenate(each) for each in zip(*parts, strict=True))
    return BlockIntegers(codes=_packed(codes, bits), scales=scales, zero_points=_packed(zero_points, bits))


def dequantize_blocks(packed: BlockIntegers) -> NDArray[np.float32]:
    """The numbers that a matrix of integers stands for, [N, C] float32."""
    num_rows, num_blocks = packed.scales.shape
    codes = _unpacked(packed.codes, packed.bits).astype(np.float32)
    zero_points = _unpacked(packed.zero_points, packed.bits)[:, :num_blocks, None].astype(np.float32)
    values: NDArray[np.float32] = (codes - zero_points) * packed.scales[:, :, None]
    return values.reshape(num_rows, -1)


def zero_point_bytes(num_blocks: int, bits: int) -> int:
    """Bytes that the zero points of a row take."""
    return (num_blocks * bits + 7) // 8


def _quantize_rows(
    matrix: NDArray[np.float32], bits: int
) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.uint8]]:
    blocks = matrix.reshape(len(matrix), -1, INTEGER_BLOCK)
    most = 2**bits - 1
    # Zero is always among the numbers, so that what is zero stays zero.
    low, high = np.minimum(blocks.min(-1), 0), np.maximum(blocks.max(-1), 0)
    best_error = np.full(low.shape, np.inf, np.float32)
    codes, scales, zero_points = np.zeros(blocks.shape, np.uint8), np.ones_like(low), np.zeros(low.shape, np.uint8)
    for share in _RANGES[bits]:
        scale = ((high - low) * np.float32(share / most)).astype(np.float32)
        scale = np.where(scale > 0, scale, np.float32(1))
        zero = np.clip(np.rint(-low / scale), 0, most)
        found = np.clip(np.rint(blocks / scale[..., None]) + zero[..., None], 0, most)
        error = (np.square((found - zero[..., None]) * scale[..., None] - blocks)).sum(-1)
        better = error < best_error
        best_error = np.where(better, error, best_error)
        codes = np.where(better[..., None], found.astype(np.uint8), codes)
        scales = np.where(better, scale, scales)
        zero_points = np.where(better, zero.astype(np.uint8), zero_points)
    return codes, scales, zero_points


def _packed(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Codes of the last axis side by side; a half byte that is left over is zero."""
    if bits == 8:
        return codes
    if codes.shape[-1] % 2:
        codes = np.concatenate([codes, np.zeros_like(codes[..., :1])], axis=-1)
    packed: NDArray[np.uint8] = (codes[..., 0::2] | (codes[..., 1::2] << 4)).astype(np.uint8)
    return packed


def _unpacked(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    if bits == 8:
        return packed
    pairs: NDArray[np.uint8] = np.stack([packed & 0xF, packed >> 4], axis=-1).astype(np.uint8)
    return pairs.reshape((*packed.shape[:-1], 2 * packed.shape[-1]))
