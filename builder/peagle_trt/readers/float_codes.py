"""The small floating-point types of quantized checkpoints, code by code.

Source: OCP 8-bit Floating Point Specification (E4M3: no infinities, one nan); OCP Microscaling Formats v1.0 (E2M1,
E8M0).
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

CODES_A_BYTE = 2
"""E2M1 values in a byte; the low nibble is the even element."""
_E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E8M0_BIAS, _E8M0_NAN = 127, 255


def decode_e4m3(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Values of E4M3 codes, in their shape; 0x7f and 0xff are nan."""
    return _e4m3_values()[codes]


def decode_e2m1(packed: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Values of packed E2M1 codes, the last axis twice as long."""
    pairs = _e2m1_pairs()[packed]
    return pairs.reshape(*packed.shape[:-1], packed.shape[-1] * CODES_A_BYTE)


def decode_e8m0(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Powers of two that E8M0 codes stand for; 0xff is nan."""
    powers = np.ldexp(np.float64(1), codes.astype(np.int32) - _E8M0_BIAS)
    # 2^-127 is a subnormal float32, and kept as one.
    values: NDArray[np.float32] = np.where(codes == _E8M0_NAN, np.nan, powers).astype(np.float32)
    return values


@functools.cache
def _e4m3_values() -> NDArray[np.float32]:
    codes = np.arange(256)
    exponents, fractions = codes >> 3 & 15, codes & 7
    normal = np.ldexp(1.0 + fractions / 8, exponents - 7)
    subnormal = np.ldexp(fractions / 8, -6)
    magnitudes = np.where(exponents == 0, subnormal, normal)
    magnitudes[codes & 127 == 127] = np.nan
    values: NDArray[np.float32] = np.where(codes >= 128, -magnitudes, magnitudes).astype(np.float32)
    return values


@functools.cache
def _e2m1_pairs() -> NDArray[np.float32]:
    """Both values of every byte, [256, 2]."""
    values = np.array([*_E2M1_MAGNITUDES, *(-value for value in _E2M1_MAGNITUDES)], np.float32)
    codes = np.arange(256)
    return np.stack([values[codes & 15], values[codes >> 4]], axis=1)
