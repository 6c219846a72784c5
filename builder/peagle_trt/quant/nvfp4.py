"""NVFP4: numbers of a matrix as E2M1 codes, an E4M3 scale for every 16 of a row, and one float32 scale for all.

Source: ModelOpt 0.47, whose export this repeats bit for bit: quotients are formed in float32 by true division through
the product of both scales; a block of zeros takes the scale 1; ties go to the even code.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peagle_trt.quant.fp8 import LARGEST_E4M3, encode_e4m3
from peagle_trt.readers.float_codes import decode_e2m1, decode_e4m3
from peagle_trt.readers.packed import NVFP4_BLOCK

LARGEST_E2M1 = 6.0
_SMALLEST_E4M3 = 2.0**-9
_CHUNK_ROWS_OF = 1 << 22
"""Numbers that are packed at once."""
# Halfway between neighbours; on one, the code above is taken where the code below is odd.
_BOUNDS = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.float32)
_TIES_UP = np.array([0.75, 1.75, 3.5], np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvfp4Matrix:
    """Codes and both levels of scales.

    Attributes:
        codes: uint8 [..., columns / 2]; two a byte, the low half first.
        block_scales: uint8 [..., columns / 16], E4M3 codes.
        global_scale: float32, of no dimensions.
    """

    codes: NDArray[np.uint8]
    block_scales: NDArray[np.uint8]
    global_scale: NDArray[np.float32]


def global_scale(*matrices: NDArray[np.float32]) -> NDArray[np.float32]:
    """The scale of all that matrices which are multiplied as one must share: queries, keys and values; gate and up.

    Returns:
        float32, of no dimensions: the largest magnitude becomes 6 * 448; 1 where all are zeros.
    """
    largest = np.float32(max(float(np.abs(matrix).max(initial=0.0)) for matrix in matrices))
    return np.array(np.float32(largest / np.float32(LARGEST_E2M1 * LARGEST_E4M3)) or np.float32(1))


def quantize_nvfp4(matrix: NDArray[np.float32], shared_scale: NDArray[np.float32] | None = None) -> Nvfp4Matrix:
    """Codes of a matrix, or of a stack of matrices.

    Args:
        matrix: [..., columns], finite.
        shared_scale: What `global_scale` gave for all that share it; the matrix's own where absent.

    Raises:
        ValueError: The columns are no multiple of 16.
    """
    columns = matrix.shape[-1]
    if columns % NVFP4_BLOCK:
        raise ValueError(f"{columns} columns are no multiple of {NVFP4_BLOCK}")
    scale = global_scale(matrix) if shared_scale is None else shared_scale
    rows = matrix.reshape(-1, columns)
    codes = np.empty((len(rows), columns // 2), np.uint8)
    block_scales = np.empty((len(rows), columns // NVFP4_BLOCK), np.uint8)
    step = max(1, _CHUNK_ROWS_OF // columns)
    for first in range(0, len(rows), step):
        part = slice(first, first + step)
        codes[part], block_scales[part] = _pack_rows(rows[part].astype(np.float32, copy=False), np.float32(scale))
    lead = matrix.shape[:-1]
    return Nvfp4Matrix(
        codes=codes.reshape(*lead, -1), block_scales=block_scales.reshape(*lead, -1), global_scale=np.array(scale)
    )


def dequantize_nvfp4(packed: Nvfp4Matrix) -> NDArray[np.float32]:
    """What the codes are worth, [..., columns] float32; both scales are multiplied first."""
    blocks = decode_e2m1(packed.codes).reshape(*packed.block_scales.shape, NVFP4_BLOCK)
    scales = decode_e4m3(packed.block_scales) * np.float32(packed.global_scale)
    return (blocks * scales[..., None]).reshape(*packed.codes.shape[:-1], -1)


def encode_e2m1(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Codes of the nearest E2M1 numbers, one a byte, ties to the even code; beyond 6 the largest.

    A number that is too small for its sign to matter keeps it; zero has none.
    """
    magnitudes = np.abs(values)
    codes = np.searchsorted(_BOUNDS, magnitudes, side="left").astype(np.uint8)
    codes += np.isin(magnitudes, _TIES_UP)
    return codes | ((values < 0).astype(np.uint8) << np.uint8(3))


def _pack_rows(rows: NDArray[np.float32], scale: np.float32) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    blocks = rows.reshape(len(rows), -1, NVFP4_BLOCK)
    wanted = np.abs(blocks).max(axis=2) / (np.float32(LARGEST_E2M1) * scale)
    wanted[wanted == 0] = 1
    block_scales = encode_e4m3(np.clip(wanted, _SMALLEST_E4M3, LARGEST_E4M3))
    product = decode_e4m3(block_scales) * scale
    codes = encode_e2m1((blocks / product[..., None]).reshape(rows.shape))
    return codes[:, ::2] | codes[:, 1::2] << np.uint8(4), block_scales
