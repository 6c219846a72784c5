"""Cosine and sine of a pass's positions, without a table of every position and without a runtime's own sine.

A position is 256 * block + place. Both have small tables, computed here in float64, and the angles' sum is taken by the
addition theorems: 2e-7 from the truth at any position, where a float32 product of position and frequency is 4e-3 off at
128 k. It is computed once a pass, for all layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peagle_trt.graph.builder import GraphBuilder
from peagle_trt.graph.rope import amplitude, inverse_frequencies
from peagle_trt.spec import RopeConfig

_PLACES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """Names of cosine and sine, [B, S, D / 2] each."""

    cos: str
    sin: str

    def turn(self, builder: GraphBuilder, heads: str) -> str:
        """Rotate heads, [B, heads, S, D], whose halves are the pairs."""
        return builder.op("RotaryEmbedding", heads, self.cos, self.sin)


def rotations(
    builder: GraphBuilder, rope: RopeConfig, head_dim: int, positions: str, *, max_positions: int
) -> tuple[Rotation, Rotation]:
    """Rotations of queries and of keys; that of queries divides by sqrt(D) as well, for TensorRT's attention does not.

    Args:
        builder: Graph under construction.
        rope: The embedding.
        head_dim: D.
        positions: [B, S] int32, below `max_positions`.
        max_positions: Positions that may occur.
    """
    places = builder.constant(np.array(_PLACES, np.int32))
    block = builder.op("Div", positions, places)
    place = builder.op("Sub", positions, builder.op("Mul", block, places))
    frequencies = inverse_frequencies(rope, head_dim).astype(np.float64)
    far = _tables(builder, _PLACES * np.arange(-(-max_positions // _PLACES)), frequencies, amplitude(rope), block)
    near = _tables(builder, np.arange(_PLACES), frequencies, 1.0, place)
    products = {(a, b): builder.op("Mul", far[a], near[b]) for a in (0, 1) for b in (0, 1)}
    cos = builder.op("Sub", products[0, 0], products[1, 1])
    sin = builder.op("Add", products[1, 0], products[0, 1])
    scale = builder.constant(np.array(head_dim**-0.5, np.float32))
    scaled = [builder.op("Mul", values, scale) for values in (cos, sin)]
    return _rotation(builder, *scaled), _rotation(builder, cos, sin)


def _rotation(builder: GraphBuilder, cos: str, sin: str) -> Rotation:
    if builder.element == "FLOAT":
        return Rotation(cos=cos, sin=sin)
    return Rotation(cos=builder.cast(cos, builder.element), sin=builder.cast(sin, builder.element))


def _tables(
    builder: GraphBuilder, angles: NDArray[np.int64], frequencies: NDArray[np.float64], factor: float, indices: str
) -> tuple[str, str]:
    """Rows of cosine and sine of `angles` times each frequency, [B, S, D / 2] float32."""
    turns = angles[:, None] * frequencies
    tables = (builder.constant((function(turns) * factor).astype(np.float32)) for function in (np.cos, np.sin))
    cos, sin = (builder.op("Gather", table, indices, axis=0) for table in tables)
    return cos, sin
