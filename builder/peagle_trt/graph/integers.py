"""Products with matrices of block integers, through ONNX Runtime's own kernel."""

from __future__ import annotations

from peagle_trt.graph.builder import MICROSOFT, GraphBuilder
from peagle_trt.quant.block_integers import INTEGER_BLOCK
from peagle_trt.quant.packing import INTEGER_SCALES, ZERO_POINTS

ACCURACY_LEVEL = 4
"""Rows are rounded to 8-bit integers with a scale for each block of 32.

Measured with ONNX Runtime 1.32 (AVX2), 960 x 1536, milliseconds of one core for 1 and 6 rows: level 4 takes 0.04 and
0.14 with 4 bits and 0.03 and 0.13 with 8; level 0, which leaves rows alone, 0.11 and 0.39, and 4.2 and 4.5. Level 4
gives a row the same bits alone and among others; level 0 does not.
"""


def is_integer(builder: GraphBuilder, name: str) -> bool:
    """Whether a matrix is stored as block integers."""
    return builder.has_weight(f"{name}{INTEGER_SCALES}")


def integer_linear(builder: GraphBuilder, rows: str, name: str, bias: str = "", *, output: str | None = None) -> str:
    """`rows @ weight.T + bias`.

    Args:
        builder: Graph under construction.
        rows: [T, columns] float32.
        name: Stored name of a matrix for which `is_integer`.
        bias: Stored name of the bias, or "".
        output: Name of the result; one is made where it is None.
    """
    num_rows, num_blocks, block_bytes = builder.stored(name).shape
    codes, scales, zero_points = (builder.raw_weight(f"{name}{suffix}") for suffix in ("", INTEGER_SCALES, ZERO_POINTS))
    has_bias = bool(bias) and builder.has_weight(bias)
    product = builder.op(
        "MatMulNBits",
        rows,
        codes,
        scales,
        zero_points,
        domain=MICROSOFT,
        output=None if has_bias else output,
        K=num_blocks * INTEGER_BLOCK,
        N=num_rows,
        bits=block_bytes * 8 // INTEGER_BLOCK,
        block_size=INTEGER_BLOCK,
        accuracy_level=ACCURACY_LEVEL,
    )
    return builder.op("Add", product, builder.weight(bias), output=output) if has_bias else product
