"""Rotary embeddings of the reference, written apart from those of the graphs."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from peagle_trt.spec import RopeConfig
from peagle_trt.verify.weights import Array


def rotary_frequencies(rope: RopeConfig, head_dim: int) -> tuple[Array, float]:
    """Angle per position of every pair of dimensions, [D/2], and the factor on cosine and sine.

    Source: transformers 5 `modeling_rope_utils.py`; YaRN (arXiv 2309.00071, section 3).
    """
    frequencies = rope.theta ** (-np.arange(0, head_dim, 2) / head_dim)
    match rope.scaling:
        case "linear":
            return frequencies / rope.factor, 1.0
        case "llama3":
            return _llama3_frequencies(rope, frequencies), 1.0
        case "yarn":
            default = 0.1 * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0
            scale = default if rope.attention_factor is None else rope.attention_factor
            return _yarn_frequencies(rope, frequencies, head_dim), scale
    return frequencies, 1.0


def rotate(rope: RopeConfig, heads: Array, positions_T: NDArray[np.int64]) -> Array:
    """Turn heads by their positions; [T, heads, D], the two halves of D being the pairs."""
    frequencies, scale = rotary_frequencies(rope, heads.shape[-1])
    angles = positions_T[:, None] * frequencies
    cosines, sines = np.cos(angles)[:, None] * scale, np.sin(angles)[:, None] * scale
    first, second = np.split(heads, 2, axis=-1)
    return np.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=-1)


def _llama3_frequencies(rope: RopeConfig, frequencies: Array) -> Array:
    turns = rope.original_max_positions * frequencies / (2 * np.pi)
    smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    share = np.clip(smooth, 0.0, 1.0)
    result: Array = share * frequencies + (1 - share) * frequencies / rope.factor
    return result


def _yarn_frequencies(rope: RopeConfig, frequencies: Array, head_dim: int) -> Array:
    def dimension_of(turns: float) -> float:
        return head_dim * math.log(rope.original_max_positions / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension_of(rope.beta_fast), dimension_of(rope.beta_slow)
    if rope.truncates_ramp:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = np.clip((np.arange(head_dim // 2) - low) / max(high - low, 0.001), 0.0, 1.0)
    result: Array = frequencies * (1 - ramp) + frequencies / rope.factor * ramp
    return result
