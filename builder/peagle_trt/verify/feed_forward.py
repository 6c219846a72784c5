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
    rows_by_expert = {
        int(expert): np.flatnonzero(chosen_TE[:, expert]) for expert in chosen_TE.any(axis=0).nonzero()[0]
    }
    gate_up = _project(experts, load, f"{prefix}experts_gate_up", {e: rows_TH[r] for e, r in rows_by_expert.items()})
    activated = {expert: _activate(experts, values[:, ::2], values[:, 1::2]) for expert, values in gate_up.items()}
    for expert, output in _project(experts, load, f"{prefix}experts_down", activated).items():
        rows = rows_by_expert[expert]
        mixed_TH[rows] += shares_TE[rows, expert, None] * output
    return mixed_TH, _smallest_margin(logits_TE, order_TE, count)


def _project(experts: ExpertsConfig, load: Load, name: str, rows: dict[int, Array]) -> dict[int, Array]:
    """Rows of every expert through a projection of its own, of which one at a time is widened to float64."""
    weights, projected = load(f"{name}_proj"), dict[int, Array]()
    biases = read(load, f"{name}_bias") if experts.has_expert_bias else None
    for expert, values in rows.items():
        projected[expert] = values @ weights[expert].astype(np.float64).T
        if biases is not None:
            projected[expert] += biases[expert]
    return projected


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
