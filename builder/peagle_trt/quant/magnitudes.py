"""How large a number may be that is rounded: sums of squares over a layer must stay numbers of float32."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peagle_trt.errors import CheckpointError

LARGEST_ROUNDED = 2.0**40
"""Some 1.1e12, with room for 2**47 squares. No trained weight comes near; beyond 2**60 errors of blocks overflow."""


def require_roundable(name: str, largest: float) -> None:
    """Refuse a tensor whose numbers are too large to be rounded.

    Args:
        name: The tensor or layer, for the message.
        largest: Its largest magnitude; nan where a number is none.

    Raises:
        CheckpointError: It is nan, infinite or above `LARGEST_ROUNDED`.
    """
    if not np.isfinite(largest):
        raise CheckpointError(
            f"`{name}` holds a value that is no number", hint="the checkpoint is damaged; fetch it again"
        )
    if largest > LARGEST_ROUNDED:
        raise CheckpointError(
            f"`{name}` holds a magnitude of {largest:.3g}, expected at most {LARGEST_ROUNDED:.3g} of what is rounded",
            hint="no trained weight is that large: the checkpoint is damaged; fetch it again",
        )


def roundable(name: str, values: NDArray[np.generic]) -> NDArray[np.float32]:
    """Numbers as float32, looked at by `require_roundable`."""
    numbers = values.astype(np.float32, copy=False)
    # Nothing of the matrix's size is made: both ends are nan where a number is.
    require_roundable(name, float(max(numbers.max(initial=0), -numbers.min(initial=0))))
    return numbers
