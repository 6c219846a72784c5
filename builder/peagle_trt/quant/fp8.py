"""FP8: numbers of a matrix as E4M3 codes and one float32 scale.

Source: OCP 8-bit Floating Point Specification (E4M3: no infinities, largest 448). The scale is what ModelOpt 0.47
writes; its codes are rounded twice, through bfloat16, while these are rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LARGEST_E4M3 = 448.0
_CHUNK = 1 << 22
"""Numbers that are encoded at once: some temporaries of 16 MiB each."""
_SMALLEST_NORMAL, _STEPS_OF_SUBNORMAL = 2.0**-6, 2.0**9
_FRACTION_BITS, _DROPPED_BITS, _BIAS_DIFFERENCE = 3, 20, 127 - 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Matrix:
    """Codes and what they are multiplied by.

    Attributes:
        codes: uint8, in the matrix's shape.
        scale: float32, of no dimensions.
    """

    codes: NDArray[np.uint8]
    scale: NDArray[np.float32]


def quantize_fp8(matrix: NDArray[np.float32]) -> Fp8Matrix:
    """Codes of a matrix whose largest number becomes 448; a matrix of zeros takes the scale 1.

    Args:
        matrix: Finite numbers.
    """
    largest = np.float32(np.abs(matrix).max(initial=0.0))
    scale = np.float32(largest / np.float32(LARGEST_E4M3)) or np.float32(1)
    codes = np.empty(matrix.size, np.uint8)
    flat = matrix.reshape(-1)
    for first in range(0, flat.size, _CHUNK):
        part = slice(first, first + _CHUNK)
        codes[part] = encode_e4m3(flat[part] / scale)
    return Fp8Matrix(codes=codes.reshape(matrix.shape), scale=np.array(scale))


def encode_e4m3(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Codes of the nearest E4M3 numbers, ties to even; beyond 448 the largest.

    Args:
        values: Numbers, infinities among them, but no nan.
    """
    limited = np.clip(values, -LARGEST_E4M3, LARGEST_E4M3).astype(np.float32)
    magnitudes = np.abs(limited)
    bits = magnitudes.view(np.uint32)
    half = np.uint32((1 << (_DROPPED_BITS - 1)) - 1)
    rounded = (bits + half + ((bits >> np.uint32(_DROPPED_BITS)) & np.uint32(1))) >> np.uint32(_DROPPED_BITS)
    normal = rounded.astype(np.int32) - (_BIAS_DIFFERENCE << _FRACTION_BITS)
    # Their codes count steps of 2^-9; `rint` takes ties to even, and 8 steps are the code of the smallest normal.
    subnormal = np.rint(magnitudes * np.float32(_STEPS_OF_SUBNORMAL)).astype(np.int32)
    codes = np.where(magnitudes < _SMALLEST_NORMAL, subnormal, normal)
    signs = (np.signbit(limited)).astype(np.int32) << 7
    encoded: NDArray[np.uint8] = (codes | signs).astype(np.uint8)
    return encoded
