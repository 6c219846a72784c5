"""Four-bit codes read eight to an integer of 32 bits: how a graph unpacks numbers that were chosen while it runs.

TensorRT-RTX 1.7 gathers no FP4, FP8 or INT8 tensor, and turns one of UINT8 into one of INT32, four times the bytes.
INT32 it leaves alone. The stored bytes are therefore read as such integers, and taken apart by arithmetic that
TensorRT fuses with what follows: it has no operators on bits. The same nodes run in ONNX Runtime, to the same bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peagle_trt.graph.builder import GraphBuilder
from peagle_trt.readers.float_codes import decode_e4m3, decode_e8m0

CODES_A_WORD = 8
SCALES_A_WORD = 4
_HALF = 1 << 16


def doubled_values(builder: GraphBuilder, words: str) -> list[str]:
    """Twice the values of the eight E2M1 codes of every word, float32 each in the words' shape; the lowest code first.

    Source: OCP Microscaling Formats v1.0 (E2M1).
    """
    return [_doubled_value(builder, code) for code in _digits(builder, words, base=16, a_half=4)]


def doubled_values_in_order(builder: GraphBuilder, words: str) -> str:
    """The same on two more axes, [..., 2, 4] float32, in the order of the codes.

    Nothing has to be put together for it, where a whole matrix is wanted; every code costs more arithmetic.
    """
    word = builder.op("Unsqueeze", words, builder.constant(np.array([-1], np.int64)))
    places = builder.constant(np.array([1, _HALF], np.int32))
    whole = builder.op("Div", builder.op("Sub", word, builder.op("Mod", word, places)), places)
    halves = builder.cast(builder.op("Mod", whole, builder.constant(np.array(_HALF, np.int32))), "FLOAT")
    half = builder.op("Unsqueeze", halves, builder.constant(np.array([-1], np.int64)))
    shares = builder.constant((1 / np.array([1, 16, 256, 4096])).astype(np.float32))
    quotient = builder.op("Floor", builder.op("Mul", half, shares))
    above = builder.op("Floor", builder.op("Mul", quotient, _number(builder, 1 / 16)))
    code = builder.op("Sub", quotient, builder.op("Mul", above, _number(builder, 16)))
    return _doubled_value(builder, code)


def scale_values(builder: GraphBuilder, words: str, table: str) -> list[str]:
    """What a table of 256 says about the four bytes of every word; the lowest byte first."""
    codes = _digits(builder, words, base=256, a_half=2)
    return [builder.op("Gather", table, builder.cast(code, "INT32"), axis=0) for code in codes]


def halved_e8m0() -> NDArray[np.float32]:
    """Half the scale of every E8M0 code, [256]; the last code is no number."""
    return decode_e8m0(np.arange(256, dtype=np.uint8)) * np.float32(0.5)


def halved_e4m3() -> NDArray[np.float32]:
    """Half the scale of every E4M3 code, [256]; two codes are no numbers."""
    return decode_e4m3(np.arange(256, dtype=np.uint8)) * np.float32(0.5)


def _digits(builder: GraphBuilder, words: str, *, base: int, a_half: int) -> list[str]:
    """Digits of unsigned words to a base, as float32: halves first, for float32 has 24 bits of an integer."""
    half = builder.constant(np.array(_HALF, np.int32))
    low = builder.op("Mod", words, half)
    # Words are signed: the quotient of a negative one is brought back by the second remainder.
    high = builder.op("Mod", builder.op("Div", builder.op("Sub", words, low), half), half)
    digits: list[str] = []
    for part in (low, high):
        rest = builder.cast(part, "FLOAT")
        for _ in range(a_half - 1):
            quotient = builder.op("Floor", builder.op("Mul", rest, _number(builder, 1 / base)))
            digits.append(builder.op("Sub", rest, builder.op("Mul", quotient, _number(builder, base))))
            rest = quotient
        digits.append(rest)
    return digits


def _doubled_value(builder: GraphBuilder, code: str) -> str:
    """Of magnitude m, twice the value is the largest of m, 2m - 4 and 4m - 16: 0, 1, 2, 3, 4, 6, 8, 12."""
    is_negative = builder.op("Floor", builder.op("Mul", code, _number(builder, 1 / 8)))
    magnitude = builder.op("Sub", code, builder.op("Mul", is_negative, _number(builder, 8)))
    middle = builder.op("Sub", builder.op("Mul", magnitude, _number(builder, 2)), _number(builder, 4))
    high = builder.op("Sub", builder.op("Mul", magnitude, _number(builder, 4)), _number(builder, 16))
    doubled = builder.op("Max", builder.op("Max", magnitude, middle), high)
    sign = builder.op("Sub", _number(builder, 1), builder.op("Mul", is_negative, _number(builder, 2)))
    return builder.op("Mul", doubled, sign)


def _number(builder: GraphBuilder, value: float) -> str:
    return builder.constant(np.array(value, np.float32))
