"""The codes of `fp8.py` and `nvfp4.py`, bit for bit, straight from stored bits and fast enough for whole checkpoints.

FP8: half-width types have 32,768 magnitudes, so a table made by `encode_e4m3` for the matrix's scale says it all.
NVFP4: magnitudes are compared with the seven bounds between codes, in chunks that stay in a core's cache. Measured on
a core of 2026: 20 times `encode_e4m3`, and 15 times `encode_e2m1`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from peagle_trt.quant.fp8 import LARGEST_E4M3, encode_e4m3
from peagle_trt.quant.nvfp4 import LARGEST_E2M1
from peagle_trt.quant.stored_floats import Bits, to_float32
from peagle_trt.readers.float_codes import decode_e4m3
from peagle_trt.readers.packed import NVFP4_BLOCK

_SIGN = 0x8000
_CHUNK = 1 << 16
"""Numbers that are compared at once; 256 KiB of float32, which fit the cache of any core."""
_SMALLEST_E4M3 = 2.0**-9
# On a bound, the even code is taken: the one below for the first, the one above for the second, and so on in turns.
_BOUNDS = tuple(np.float32(bound) for bound in (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0))


def fp8_scale(largest: np.float32) -> np.float32:
    """The scale by which the largest magnitude becomes 448; 1 where all are zeros."""
    return np.float32(largest / np.float32(LARGEST_E4M3)) or np.float32(1)


def nvfp4_scale(largest: np.float32) -> np.float32:
    """The scale by which the largest magnitude becomes 6 * 448; 1 where all are zeros."""
    return np.float32(largest / np.float32(LARGEST_E2M1 * LARGEST_E4M3)) or np.float32(1)


def fp8_encoder(dtype: str, scale: np.float32) -> Callable[[Bits], NDArray[np.uint8]]:
    """What turns bits of a type into E4M3 codes.

    Args:
        dtype: As safetensors spells it.
        scale: What numbers are divided by.
    """
    if dtype not in ("BF16", "F16"):
        return lambda bits: encode_e4m3(to_float32(bits, dtype) / scale)
    with np.errstate(invalid="ignore", over="ignore"):
        numbers = np.nan_to_num(to_float32(np.arange(_SIGN, dtype=np.uint16), dtype) / scale)
    positive = encode_e4m3(numbers)
    table = np.concatenate([positive, positive | np.uint8(0x80)])
    return lambda bits: _look_up(table, bits)


def _look_up(table: NDArray[np.uint8], bits: Bits) -> NDArray[np.uint8]:
    codes = np.empty(bits.size, np.uint8)
    # numpy widens the indices to 8 bytes, a chunk of which stays in a core's cache.
    for first in range(0, bits.size, _CHUNK):
        table.take(bits[first : first + _CHUNK], mode="clip", out=codes[first : first + _CHUNK])
    return codes


def nvfp4_codes(bits: Bits, dtype: str, scale: np.float32) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Codes of numbers, 16 after 16 of a row.

    Args:
        bits: Flat, a multiple of 16.
        dtype: Their type, as safetensors spells it.
        scale: The scale of all that share it.

    Returns:
        Codes, two a byte with the low half first; E4M3 codes of the blocks' scales.
    """
    codes = np.empty(bits.size // 2, np.uint8)
    scales = np.empty(bits.size // NVFP4_BLOCK, np.uint8)
    for first in range(0, bits.size, _CHUNK):
        end = min(first + _CHUNK, bits.size)
        part = to_float32(bits[first:end], dtype)
        blocks = slice(first // NVFP4_BLOCK, end // NVFP4_BLOCK)
        scales[blocks] = _block_scales(part, scale)
        product = decode_e4m3(scales[blocks]) * scale
        codes[first // 2 : end // 2] = _e2m1_pairs(part / np.repeat(product, NVFP4_BLOCK))
    return codes, scales


def _block_scales(numbers: NDArray[np.float32], scale: np.float32) -> NDArray[np.uint8]:
    # Along the short axis `max` is slow; turned around it runs over whole rows.
    magnitudes = np.ascontiguousarray(np.abs(numbers).reshape(-1, NVFP4_BLOCK).T)
    wanted = magnitudes.max(axis=0) / (np.float32(LARGEST_E2M1) * scale)
    wanted[wanted == 0] = 1
    return encode_e4m3(np.clip(wanted, np.float32(_SMALLEST_E4M3), np.float32(LARGEST_E4M3)))


def _e2m1_pairs(quotients: NDArray[np.float32]) -> NDArray[np.uint8]:
    magnitudes = np.abs(quotients)
    codes = (magnitudes > _BOUNDS[0]).view(np.uint8)
    for index, bound in enumerate(_BOUNDS[1:], 1):
        passed = magnitudes >= bound if index % 2 else magnitudes > bound
        codes += passed.view(np.uint8)
    codes |= (quotients < 0).view(np.uint8) << np.uint8(3)
    pairs = codes.view("<u2")
    packed: NDArray[np.uint8] = (pairs | pairs >> np.uint16(4)).astype(np.uint8)
    return packed
