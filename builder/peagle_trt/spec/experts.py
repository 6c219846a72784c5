"""A mixture-of-experts feed-forward block."""

from __future__ import annotations

from typing import Literal

import msgspec

ExpertActivation = Literal["swiglu", "clamped_swiglu"]


class ExpertsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Experts of every layer of a target, and how the router chooses among them.

    Attributes:
        num_experts: Experts of a layer.
        experts_per_token: Experts that a token is sent to.
        intermediate_size: Width of one expert.
        activation: `swiglu` is `silu(gate) * up`; `clamped_swiglu`, of gpt-oss, is
            `(up + 1) * gate * sigmoid(alpha * gate)` with gate limited from above and up from both sides.
        alpha: clamped_swiglu only; slope of the sigmoid.
        limit: clamped_swiglu only; bound of gate and up.
        normalizes_shares: The chosen experts' shares are divided by their sum. The same as a softmax over the chosen
            logits alone, which is how gpt-oss writes it.
        has_router_bias: The router carries a bias.
        has_expert_bias: Every expert's projections carry biases.

    Source: transformers 5 `modeling_gpt_oss.py`, `modeling_qwen3_moe.py`.
    """

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    activation: ExpertActivation = "swiglu"
    alpha: float = 1.702
    limit: float = 7.0
    normalizes_shares: bool = True
    has_router_bias: bool = False
    has_expert_bias: bool = False
