"""What the tensors of `quant.packing` stand for, as float32 again."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from peagle_trt.quant.block_integers import BlockIntegers, dequantize_blocks
from peagle_trt.quant.nvfp4 import Nvfp4Matrix, dequantize_nvfp4
from peagle_trt.quant.packing import BLOCK_SCALES, COLUMN_SCALES, GLOBAL_SCALE, INTEGER_SCALES, SCALE, ZERO_POINTS
from peagle_trt.readers.float_codes import decode_e4m3
from peagle_trt.readers.safetensors_file import load_tensor, map_codes
from peagle_trt.spec import TensorSpec


def integer_bits(stored: Mapping[str, TensorSpec], name: str) -> int | None:
    """Bits of the integers that a matrix is stored as; None where it is no such matrix."""
    return _integers(stored, name).bits if f"{name}{INTEGER_SCALES}" in stored else None


def load_unpacked(stored: Mapping[str, TensorSpec], name: str) -> NDArray[np.generic]:
    """A stored tensor; of codes, the numbers that they are worth, in float32.

    Args:
        stored: What a build stores.
        name: Stored name.

    Raises:
        KeyError: Nothing of that name is stored.
    """
    if f"{name}{INTEGER_SCALES}" in stored:
        return dequantize_blocks(_integers(stored, name))
    if f"{name}{BLOCK_SCALES}" in stored:
        matrix = Nvfp4Matrix(
            codes=map_codes(stored[name]),
            block_scales=map_codes(stored[f"{name}{BLOCK_SCALES}"]),
            global_scale=_floats(stored, f"{name}{GLOBAL_SCALE}"),
        )
        worth = dequantize_nvfp4(matrix)
        is_divided = f"{name}{COLUMN_SCALES}" in stored
        return worth * _floats(stored, f"{name}{COLUMN_SCALES}") if is_divided else worth
    if f"{name}{SCALE}" in stored:
        values: NDArray[np.float32] = decode_e4m3(map_codes(stored[name])) * _floats(stored, f"{name}{SCALE}")
        return values
    return load_tensor(stored[name])


def _integers(stored: Mapping[str, TensorSpec], name: str) -> BlockIntegers:
    return BlockIntegers(
        codes=map_codes(stored[name]),
        scales=_floats(stored, f"{name}{INTEGER_SCALES}"),
        zero_points=map_codes(stored[f"{name}{ZERO_POINTS}"]),
    )


def _floats(stored: Mapping[str, TensorSpec], name: str) -> NDArray[np.float32]:
    return load_tensor(stored[name]).astype(np.float32, copy=False)
