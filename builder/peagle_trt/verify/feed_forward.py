"""The feed-forward block of the reference: one SwiGLU, or a mixture of experts.

Letters: T rows, H hidden size, E experts, k chosen ones, I width of an expert.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peagle_trt.spec import DrafterConfig, ExpertsConfig, TargetConfig
from peagle_trt.verify.weights import Array, Load, linear, read


def feed_forward(config: TargetConfig | DrafterConfig, load: Load, prefix: str, rows_TH: Array) -> tuple[Array, float]:
    """One layer's block.

    Args:
        config: The model.
        load: Its weights.
        prefix: `layers.{i}.`, of the weights.
        rows_TH: Normalised rows.

    Returns:
        [T, H], and how clear the router's choices were (see `mix_experts`), infinite without a router.
    """
    if isinstance(config, TargetConfig) and config.experts is not None:
        return mix_experts(config.experts, load, prefix, rows_TH)
    gate = linear(load, prefix, "gate", rows_TH, has_bias=config.has_mlp_bias)
    up = linear(load, prefix, "up", rows_TH, has_bias=config.has_mlp_bias)
    return linear(load, prefix, "down", gate * _sigmoid(gate) * up, has_bias=config.has_mlp_bias), np.inf


def mix_experts(experts: ExpertsConfig, load: Load, prefix: str, rows_TH: Array) -> tuple[Array, float]:
    """Send every row to its experts and add up what they say.

    Returns:
        [T, H], and the smallest distance between the last chosen logit and the first that was not, as a share of the
        largest logit: a row whose two are closer than float32 can tell is sent elsewhere by an engine that is right.

    Source: transformers 5 `modeling_gpt_oss.py`, `modeling_qwen3_moe.py`.
    """
    logits_TE = rows_TH @ read(load, f"{prefix}router").T
    if experts.has_router_bias:
        logits_TE = logits_TE + read(load, f"{prefix}router_bias")
    order_TE = np.argsort(-logits_TE, axis=1, kind="stable")
    count = experts.experts_per_token
    shares_TE = np.exp(logits_TE - logits_TE.max(axis=1, keepdims=True))
    shares_TE /= shares_TE.sum(axis=1, keepdims=True)
    chosen_TE = np.zeros_like(shares_TE)
    np.put_along_axis(chosen_TE, order_TE[:, :count], 1.0, axis=1)
    shares_TE *= chosen_TE
    if experts.normalizes_shares:
        shares_TE /= shares_TE.sum(axis=1, keepdims=True)
    mixed_TH = np.zeros_like(rows_TH)
    weights = _ExpertWeights(experts, load, prefix)
    for expert in np.flatnonzero(chosen_TE.any(axis=0)):
        rows = np.flatnonzero(chosen_TE[:, expert])
        mixed_TH[rows] += shares_TE[rows, expert, None] * weights.run(int(expert), rows_TH[rows])
    return mixed_TH, _smallest_margin(logits_TE, order_TE, count)


class _ExpertWeights:
    """The experts of one layer; one at a time is widened to float64."""

    def __init__(self, experts: ExpertsConfig, load: Load, prefix: str) -> None:
        self._experts = experts
        self._gate_up, self._down = (load(f"{prefix}experts_{part}_proj") for part in ("gate_up", "down"))
        self._biases = (
            [read(load, f"{prefix}experts_{part}_bias") for part in ("gate_up", "down")]
            if experts.has_expert_bias
            else None
        )

    def run(self, expert: int, rows_TH: Array) -> Array:
        """What one expert makes of rows."""
        gate_up: Array = rows_TH @ self._gate_up[expert].astype(np.float64).T
        if self._biases:
            gate_up = gate_up + self._biases[0][expert]
        activated = _activate(self._experts, gate_up[:, ::2], gate_up[:, 1::2])
        output: Array = activated @ self._down[expert].astype(np.float64).T
        return output + self._biases[1][expert] if self._biases else output


def _activate(experts: ExpertsConfig, gate: Array, up: Array) -> Array:
    if experts.activation == "swiglu":
        return up * gate * _sigmoid(gate)
    gate, up = np.minimum(gate, experts.limit), np.clip(up, -experts.limit, experts.limit)
    activated: Array = (up + 1.0) * gate * _sigmoid(experts.alpha * gate)
    return activated


def _smallest_margin(logits_TE: Array, order_TE: NDArray[np.intp], count: int) -> float:
    if count == logits_TE.shape[1]:
        return float("inf")
    last, first_left_out = (np.take_along_axis(logits_TE, order_TE[:, i : i + 1], axis=1) for i in (count - 1, count))
    scale = np.maximum(np.abs(logits_TE).max(axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return float(((last - first_left_out) / scale).min())


def _sigmoid(values: Array) -> Array:
    # Large negative values overflow to infinity in exp, and 1 / (1 + inf) is the right 0.
    with np.errstate(over="ignore"):
        result: Array = 1.0 / (1.0 + np.exp(-values))
    return result
