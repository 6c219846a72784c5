"""Rotary frequencies of every scaling rule we read, and the tables a graph computes from them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from peagle_trt.graph.builder import GraphBuilder
from peagle_trt.spec import RopeConfig


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> NDArray[np.float32]:
    """Angle per position of every pair of dimensions.

    Args:
        rope: The embedding.
        head_dim: Width of a head, even.

    Returns:
        [head_dim / 2] float32, radians per position.

    Source: RoPE (arXiv 2104.09864); linear interpolation (arXiv 2306.15595); YaRN (arXiv 2309.00071, section 3.2);
        llama3 as Meta's Llama 3.1 model code defines it.
    """
    plain = 1.0 / rope.theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if rope.scaling == "linear":
        return (plain / rope.factor).astype(np.float32)
    if rope.scaling == "llama3":
        return _llama3(plain, rope).astype(np.float32)
    if rope.scaling == "yarn":
        return _yarn(plain, rope, head_dim).astype(np.float32)
    return plain.astype(np.float32)


def amplitude(rope: RopeConfig) -> float:
    """Factor on cos and sin; 1 except for YaRN, whose default is `0.1 ln(factor) + 1`."""
    if rope.scaling != "yarn":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    return 0.1 * math.log(rope.factor) + 1.0 if rope.factor > 1.0 else 1.0


def rotary_tables(builder: GraphBuilder, rope: RopeConfig, head_dim: int, positions: int) -> tuple[str, str]:
    """Cosine and sine of every position, [positions, head_dim / 2] float32 each.

    They are written as a formula that the runtime folds when it loads the graph: a stored table for 128 k positions
    would weigh tens of megabytes in every graph file.
    """
    steps = builder.op("Range", *(builder.constant(np.array(value, np.float32)) for value in (0, positions, 1)))
    column = builder.op("Unsqueeze", steps, builder.constant(np.array([1], np.int64)))
    angles = builder.op("Mul", column, builder.constant(inverse_frequencies(rope, head_dim)[None, :]))
    scale = builder.constant(np.array(amplitude(rope), np.float32))
    cos, sin = (builder.op("Mul", builder.op(function, angles), scale) for function in ("Cos", "Sin"))
    return cos, sin


def _llama3(plain: NDArray[np.float64], rope: RopeConfig) -> NDArray[np.float64]:
    wavelength = 2.0 * math.pi / plain
    longest_kept = rope.original_max_positions / rope.high_freq_factor
    shortest_stretched = rope.original_max_positions / rope.low_freq_factor
    ramp = (rope.original_max_positions / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1.0 - ramp) * plain / rope.factor + ramp * plain
    stretched = np.where(wavelength > shortest_stretched, plain / rope.factor, blended)
    return np.where(wavelength < longest_kept, plain, stretched)


def _yarn(plain: NDArray[np.float64], rope: RopeConfig, head_dim: int) -> NDArray[np.float64]:
    def dimension(rotations: float) -> float:
        turns = rope.original_max_positions / (rotations * 2.0 * math.pi)
        return head_dim * math.log(turns) / (2.0 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncates_ramp:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    span = high - low if high != low else 0.001
    ramp = np.clip((np.arange(head_dim // 2) - low) / span, 0.0, 1.0)
    return plain / rope.factor * ramp + plain * (1.0 - ramp)
