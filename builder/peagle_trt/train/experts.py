"""Feed-forward blocks of a target: one SwiGLU, or a mixture of experts.

Shape letters: B sequences, T tokens, R rows of all sequences, E experts, k chosen ones, H hidden, I width of an expert.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from peagle_trt.train.target_weights import DenseStack, Linear, PackedStack, WeightLoader

if TYPE_CHECKING:
    from torch import Tensor

    from peagle_trt.spec import ExpertsConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SwiGlu:
    """The block of a dense layer."""

    gate_up: Linear
    down: Linear

    def __call__(self, normed_BTH: Tensor) -> Tensor:
        """[B, T, H] in the type of the products to float32."""
        import torch.nn.functional as functional

        gate, up = self.gate_up(normed_BTH).chunk(2, dim=-1)
        return self.down(functional.silu(gate) * up).float()


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureOfExperts:
    """A router and its experts; the router runs in float32, so that a choice depends on the states alone."""

    config: ExpertsConfig
    router_EH: Tensor
    router_bias_E: Tensor | None
    gate_up: DenseStack | PackedStack
    gate_up_bias_EI: Tensor | None
    down: DenseStack | PackedStack
    down_bias_EH: Tensor | None

    def __call__(self, normed_BTH: Tensor) -> Tensor:
        """[B, T, H] in the type of the products to float32.

        Source: transformers 5 `modeling_gpt_oss.py`, `modeling_qwen3_moe.py`.
        """
        import torch
        import torch.nn.functional as functional

        rows_RH = normed_BTH.flatten(0, -2)
        logits_RE = functional.linear(rows_RH.float(), self.router_EH, self.router_bias_E)
        experts_Rk = logits_RE.topk(self.config.experts_per_token, dim=-1).indices
        shares_Rk = logits_RE.softmax(dim=-1).gather(1, experts_Rk)
        if self.config.normalizes_shares:
            shares_Rk = shares_Rk / shares_Rk.sum(dim=-1, keepdim=True)
        mixed_RH = torch.zeros(rows_RH.shape, device=rows_RH.device)
        for expert in torch.unique(experts_Rk).tolist():
            rows, places = torch.nonzero(experts_Rk == expert, as_tuple=True)
            output = self._run(expert, rows_RH[rows]) * shares_Rk[rows, places, None]
            mixed_RH.index_add_(0, rows, output)
        return mixed_RH.view(normed_BTH.shape)

    def _run(self, expert: int, rows: Tensor) -> Tensor:
        import torch.nn.functional as functional

        gate_up_bias, down_bias = (
            None if bias is None else bias[expert] for bias in (self.gate_up_bias_EI, self.down_bias_EH)
        )
        # Rows of gate and up take turns (see `spec.names`).
        opened = functional.linear(rows, self.gate_up.matrix(expert), gate_up_bias)
        activated = self._activate(opened[..., ::2], opened[..., 1::2])
        return functional.linear(activated, self.down.matrix(expert), down_bias).float()

    def _activate(self, gate: Tensor, up: Tensor) -> Tensor:
        import torch.nn.functional as functional

        if self.config.activation == "swiglu":
            return functional.silu(gate) * up
        limit = self.config.limit
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return (up + 1.0) * gate * (gate * self.config.alpha).sigmoid()


def load_feed_forward(loader: WeightLoader, prefix: str, experts: ExpertsConfig | None) -> SwiGlu | MixtureOfExperts:
    """The block of one layer.

    Args:
        loader: Of the target.
        prefix: `layers.{i}.`, of the weights.
        experts: The target's experts, or None.
    """
    if experts is None:
        return SwiGlu(gate_up=loader.linear(prefix, "gate", "up"), down=loader.linear(prefix, "down"))
    gate_up_bias, down_bias = (loader.optional(f"{prefix}experts_{name}_bias") for name in ("gate_up", "down"))
    return MixtureOfExperts(
        config=experts,
        router_EH=loader.exact(f"{prefix}router"),
        router_bias_E=loader.optional(f"{prefix}router_bias"),
        gate_up=loader.stack(f"{prefix}experts_gate_up_proj"),
        gate_up_bias_EI=None if gate_up_bias is None else gate_up_bias.to(loader.compute_dtype),
        down=loader.stack(f"{prefix}experts_down_proj"),
        down_bias_EH=None if down_bias is None else down_bias.to(loader.compute_dtype),
    )
