"""Float32 as the two types of half its size, rounded to the nearest, ties to even."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peagle_trt.errors import CheckpointError
from peagle_trt.quant.magnitudes import roundable

HALF_TYPES = ("BF16", "F16")


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Bits of the nearest bfloat16, in the values' shape; numpy has no such type.

    Args:
        values: Finite numbers.
    """
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    # Half a step, less one where the last bit that stays is 0: a tie goes to the even neighbour.
    rounded = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    return (rounded >> np.uint32(16)).astype(np.uint16)


def to_half(name: str, values: NDArray[np.generic], dtype: str) -> NDArray[np.generic]:
    """Numbers as they are written: bits of bfloat16, or float16.

    Args:
        name: Our name of the tensor, for messages.
        values: float32.
        dtype: One of `HALF_TYPES`.

    Raises:
        CheckpointError: A number is too large for the type, or see `require_roundable`.
    """
    numbers = roundable(name, values)
    if dtype == "BF16":
        return to_bfloat16(numbers)
    largest = float(np.abs(numbers).max(initial=0.0))
    limit = float(np.finfo(np.float16).max)
    if largest > limit:
        raise CheckpointError(
            f"`{name}` holds {largest:g}, more than the {limit:g} that float16 can", hint="use precision `bf16`"
        )
    return numbers.astype(np.float16)
