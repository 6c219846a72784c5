"""Numbers of a stored tensor, a piece at a time and in the type they are stored in: what quantizing at scale reads.

A piece is read into memory of its own, which is free again when nobody holds it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.safetensors_file import ELEMENT_BYTES
from peagle_trt.readers.stored_bytes import read_bytes
from peagle_trt.spec import TensorSpec

Bits: TypeAlias = NDArray[np.unsignedinteger[Any]]
"""Numbers as they are stored."""

PIECE_ELEMENTS = 1 << 20
"""A multiple of every block of values that share a scale."""

FLOAT_TYPES = ("F32", "F16", "BF16", "F64")
_RAW_TYPES = {"F32": "<u4", "F16": "<u2", "BF16": "<u2", "F64": "<u8"}
# Bits of a magnitude, and the first ones that are no finite number.
_MAGNITUDES = {"F32": 0x7FFF_FFFF, "F16": 0x7FFF, "BF16": 0x7FFF, "F64": 0x7FFF_FFFF_FFFF_FFFF}
_NOT_FINITE = {"F32": 0x7F80_0000, "F16": 0x7C00, "BF16": 0x7F80, "F64": 0x7FF0_0000_0000_0000}


def pieces(spec: TensorSpec) -> Iterator[Bits]:
    """Bits of a floating tensor, flat, `PIECE_ELEMENTS` at a time; the last piece may be shorter.

    Raises:
        CheckpointError: The file is gone, or shorter than it was.
    """
    place, width = spec.location, ELEMENT_BYTES[spec.dtype]
    assert place is not None, "only a computed tensor lies nowhere"
    for start in range(0, place.length_bytes, PIECE_ELEMENTS * width):
        length = min(PIECE_ELEMENTS * width, place.length_bytes - start)
        part = replace(place, offset_bytes=place.offset_bytes + start, length_bytes=length)
        yield read_bytes(replace(spec, location=part)).view(_RAW_TYPES[spec.dtype])


def to_float32(bits: Bits, dtype: str) -> NDArray[np.float32]:
    """What bits of a type are worth."""
    if dtype == "BF16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return bits.view({"F32": "<f4", "F16": "<f2", "F64": "<f8"}[dtype]).astype(np.float32)


def largest_magnitude(spec: TensorSpec) -> np.float32:
    """The largest magnitude of a floating tensor, found among its bits: they are ordered as their numbers are.

    Raises:
        CheckpointError: A number is nan or infinite.
    """
    mask, limit = (np.array(table[spec.dtype], _RAW_TYPES[spec.dtype]) for table in (_MAGNITUDES, _NOT_FINITE))
    largest = np.zeros_like(mask)
    for index, piece in enumerate(pieces(spec)):
        found = np.bitwise_and(piece, mask, out=piece).max()
        if found >= limit:
            first = index * PIECE_ELEMENTS + int((piece >= limit).argmax())
            raise _not_finite(spec, first)
        largest = max(largest, found)
    return np.float32(to_float32(np.array([largest], _RAW_TYPES[spec.dtype]), spec.dtype)[0])


def _not_finite(spec: TensorSpec, first: int) -> CheckpointError:
    index = [int(each) for each in np.unravel_index(first, spec.shape)] if math.prod(spec.shape) else []
    where = f"`{spec.location.path}`: " if spec.location else ""
    return CheckpointError(
        f"{where}tensor `{spec.name}` holds values that are nan or infinite, first at {index}",
        hint="the weights are damaged, or training diverged; fetch the checkpoint again",
    )
