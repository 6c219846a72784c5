"""Single rows of a large table, read without the rest of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from peagle_trt.readers.safetensors_file import map_bytes
from peagle_trt.spec import TensorSpec

_NUMPY_TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8"}


def load_rows(spec: TensorSpec, rows: Sequence[int]) -> NDArray[np.float32]:
    """Some rows of a matrix.

    Args:
        spec: A matrix that lies in a safetensors or GGUF file, its rows as they are stored there.
        rows: Which ones.

    Returns:
        [len(rows), width] float32.
    """
    raw = map_bytes(spec).reshape(spec.shape[0], -1)[list(rows)]
    if spec.dtype == "BF16":
        return (raw.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    if spec.dtype in _NUMPY_TYPES:
        return raw.view(_NUMPY_TYPES[spec.dtype]).astype(np.float32)
    # A GGUF type: blocks never reach across rows, so rows can be taken apart before they are dequantized.
    from gguf import GGMLQuantizationType, quants

    values: NDArray[np.float32] = quants.dequantize(raw, GGMLQuantizationType[spec.dtype]).astype(np.float32)
    return values


def spread_rows(num_rows: int, count: int) -> list[int]:
    """Numbers of `count` rows, evenly spread from the first to the last."""
    return [int(row) for row in np.unique(np.linspace(0, num_rows - 1, count).astype(np.int64))]
