"""MXFP4 as NVFP4: the codes stay as they are, and so does what they are worth.

A power of two for 32 codes becomes the same E4M3 number twice, relative to one power of two for all. E4M3 holds powers
from 2^-9 to 2^8, so that blocks may be 17 powers apart.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peagle_trt.errors import CheckpointError
from peagle_trt.quant.nvfp4 import Nvfp4Matrix
from peagle_trt.readers.packed import MXFP4_BLOCK, NVFP4_BLOCK

_E8M0_BIAS, _E8M0_NAN = 127, 255
_LARGEST_POWER, _SMALLEST_POWER = 8, -9
POWERS_APART = _LARGEST_POWER - _SMALLEST_POWER
"""How far apart blocks may be."""
_E4M3_BIAS, _SMALLEST_NORMAL_POWER = 7, -6
_MAGNITUDE_BITS = 0x77
"""Of both codes of a byte."""


def mxfp4_to_nvfp4(
    name: str, blocks: NDArray[np.uint8], scales: NDArray[np.uint8], largest: int | None = None
) -> Nvfp4Matrix:
    """The same numbers, exactly.

    Args:
        name: Name of the tensor, for messages.
        blocks: Codes, [..., n, 16]; two a byte, the low half first.
        scales: E8M0 codes, [..., n].
        largest: The largest of what `power_range` gave for all that share a scale; these blocks' own where absent.

    Returns:
        Codes [..., 16 n], scales [..., 2 n].

    Raises:
        CheckpointError: A scale is no number, or blocks are too far apart.
    """
    is_filled = _are_filled(blocks)
    powers = scales.astype(np.int32) - _E8M0_BIAS
    if largest is None:
        _, largest = power_range(name, blocks, scales)
    overall = largest - _LARGEST_POWER
    relative = np.where(is_filled, powers - overall, 0)
    if (relative < _SMALLEST_POWER).any():
        count = int(np.count_nonzero(relative < _SMALLEST_POWER))
        raise CheckpointError(
            f"`{name}` has {count:,} block(s) over {_LARGEST_POWER - _SMALLEST_POWER} powers of two below its largest, "
            "which NVFP4 cannot hold",
            hint="keep it in MXFP4",
        )
    repeats = MXFP4_BLOCK // NVFP4_BLOCK
    return Nvfp4Matrix(
        codes=blocks.reshape(*blocks.shape[:-2], -1),
        block_scales=np.repeat(_encode_powers(relative), repeats, axis=-1),
        global_scale=np.array(np.ldexp(np.float32(1), overall), np.float32),
    )


NO_POWERS = (_LARGEST_POWER, _LARGEST_POWER)
"""The range of nothing but zeros, which gives them the scale 1."""


def power_range(name: str, blocks: NDArray[np.uint8], scales: NDArray[np.uint8]) -> tuple[int, int]:
    """The smallest and the largest power of two among the scales of blocks that are not all zeros.

    Raises:
        CheckpointError: One of those scales is no number.
    """
    filled = scales[_are_filled(blocks)]
    if (filled == _E8M0_NAN).any():
        raise CheckpointError(f"`{name}` has a scale that is no number", hint="the checkpoint is damaged")
    return (int(filled.min()) - _E8M0_BIAS, int(filled.max()) - _E8M0_BIAS) if filled.size else NO_POWERS


def _are_filled(blocks: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Which blocks hold anything but zeros, [..., n]."""
    words = np.ascontiguousarray(blocks).view(np.uint64) & np.uint64(_MAGNITUDE_BITS * 0x0101_0101_0101_0101)
    are_filled: NDArray[np.bool_] = (words[..., 0] | words[..., 1]) != 0
    return are_filled


def _encode_powers(powers: NDArray[np.int32]) -> NDArray[np.uint8]:
    """E4M3 codes of powers of two."""
    normal = (powers + _E4M3_BIAS) << 3
    subnormal = np.left_shift(1, np.clip(powers - _SMALLEST_POWER, 0, 2))
    return np.where(powers < _SMALLEST_NORMAL_POWER, subnormal, normal).astype(np.uint8)
