"""How the reference takes hold of weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Load = Callable[[str], NDArray[np.generic]]
"""Reads a tensor by its name in `spec.names`."""


def read(load: Load, name: str) -> Array:
    """A tensor in float64."""
    tensor: Array = load(name).astype(np.float64)
    return tensor


def linear(load: Load, prefix: str, name: str, values: Array, *, has_bias: bool) -> Array:
    """`values @ proj.T + bias`."""
    projected: Array = values @ read(load, f"{prefix}{name}_proj").T
    return projected + read(load, f"{prefix}{name}_bias") if has_bias else projected


def rms_norm(values: Array, weight: Array, eps: float) -> Array:
    """Root-mean-square norm over the last axis."""
    normed: Array = values / np.sqrt(np.mean(values * values, axis=-1, keepdims=True) + eps) * weight
    return normed
