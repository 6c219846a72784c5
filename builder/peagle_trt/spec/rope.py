"""Rotary position embedding, as configured by a checkpoint."""

from __future__ import annotations

from typing import Literal

import msgspec

RopeScaling = Literal["none", "linear", "llama3", "yarn"]


class RopeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rotary embedding: base frequency and how it is stretched to longer contexts.

    Attributes:
        theta: Base of the geometric sequence of wavelengths.
        scaling: Which rule stretches the frequencies.
        factor: Stretch; 1.0 means none.
        low_freq_factor: llama3 only; wavelengths above `original_max_positions / low_freq_factor` are stretched fully.
        high_freq_factor: llama3 only; wavelengths below `original_max_positions / high_freq_factor` are kept.
        original_max_positions: llama3 and yarn; context length the model was first trained with, in tokens.
        beta_fast: yarn only; rotations at which a dimension counts as high frequency.
        beta_slow: yarn only; rotations at which a dimension counts as low frequency.
        attention_factor: yarn only; multiplies cos and sin. None means the rule's own `0.1 ln(factor) + 1`.
        truncates_ramp: yarn only; whether the ramp's ends are rounded to whole dimensions (gpt-oss sets false).

    Source: transformers 5 `modeling_rope_utils.py` names the rules; formulae in graph/rope.py.
    """

    theta: float = 10000.0
    scaling: RopeScaling = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncates_ramp: bool = True
