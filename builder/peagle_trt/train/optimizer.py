"""Muon for the matrices, AdamW for the rest, one learning-rate curve over both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# Coefficients of the fifth-order Newton-Schulz iteration that maps singular values near one.
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """Rates and their curve.

    Attributes:
        matrix_rate: Peak learning rate of Muon.
        other_rate: Peak learning rate of AdamW.
        momentum: Muon's momentum (Nesterov).
        betas: AdamW's moments.
        weight_decay: Decoupled decay of both, relative to the rate.
        warmup_steps: Linear rise from zero.
        total_steps: End of the linear fall.
        decay_steps: Length of the fall; before it the rate stays at its peak. None falls from the end of the rise.
        final_share: Share of the peak rate that is left at the end.
    """

    matrix_rate: float = 0.01
    other_rate: float = 2e-3
    momentum: float = 0.95
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    warmup_steps: int = 50
    total_steps: int = 1000
    decay_steps: int | None = None
    final_share: float = 0.02

    def rate_share(self, step: int) -> float:
        """Share of the peak rate at a step, counted from zero."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        decay_steps = self.total_steps - self.warmup_steps if self.decay_steps is None else self.decay_steps
        remaining = min(1.0, max(0.0, (self.total_steps - step) / max(1, decay_steps)))
        return self.final_share + (1.0 - self.final_share) * remaining


class SplitOptimizer:
    """Steps named parameters; two-axis ones by Muon unless named in `plain`."""

    def __init__(
        self,
        parameters: Iterable[tuple[str, torch.nn.Parameter]],
        settings: OptimizerSettings,
        *,
        compute_dtype: torch.dtype,
        plain: Iterable[str] = (),
    ) -> None:
        """Sort the parameters.

        Args:
            parameters: Names and parameters; frozen ones are ignored.
            settings: Rates.
            compute_dtype: Type of Muon's matrix products; weights and momenta stay as they are.
            plain: Names of matrices that AdamW steps, embeddings for instance.
        """
        import torch

        self._settings, self._compute_dtype = settings, compute_dtype
        named = {name: parameter for name, parameter in parameters if parameter.requires_grad}
        excluded = set(plain)
        self._matrices = {name: p for name, p in named.items() if p.ndim == 2 and name not in excluded}
        others = [p for name, p in named.items() if name not in self._matrices]
        self._momenta = {name: torch.zeros_like(p) for name, p in self._matrices.items()}
        self._adam = torch.optim.AdamW(
            others, lr=settings.other_rate, betas=settings.betas, weight_decay=settings.weight_decay
        )
        self._all = list(named.values())

    def step(self, step: int, *, max_norm: float) -> float:
        """Clip the gradients, apply them, clear them.

        Args:
            step: Steps taken before this one.
            max_norm: Limit of the global gradient norm.

        Returns:
            The gradient norm before clipping.
        """
        import torch

        norm = float(torch.nn.utils.clip_grad_norm_(self._all, max_norm))
        share = self._settings.rate_share(step)
        for group in self._adam.param_groups:
            group["lr"] = self._settings.other_rate * share
        self._adam.step()
        with torch.no_grad():
            for name, parameter in self._matrices.items():
                self._step_matrix(name, parameter, self._settings.matrix_rate * share)
        for parameter in self._all:
            parameter.grad = None
        return norm

    def state(self) -> dict[str, Any]:
        """Everything that an exact continuation needs."""
        return {"momenta": self._momenta, "adam": self._adam.state_dict()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state()`."""
        for name, momentum in state["momenta"].items():
            self._momenta[name].copy_(momentum)
        self._adam.load_state_dict(state["adam"])

    def _step_matrix(self, name: str, parameter: torch.nn.Parameter, rate: float) -> None:
        if parameter.grad is None:
            return
        momentum = self._momenta[name].mul_(self._settings.momentum).add_(parameter.grad)
        ahead = parameter.grad.add(momentum, alpha=self._settings.momentum)
        update = orthogonalize(ahead.to(self._compute_dtype)).float()
        # Wide and tall matrices get updates of the same size per element.
        scale = max(1.0, parameter.shape[0] / parameter.shape[1]) ** 0.5
        parameter.mul_(1.0 - rate * self._settings.weight_decay).add_(update, alpha=-rate * scale)


def orthogonalize(matrix: Tensor, *, steps: int = 5) -> Tensor:
    """The nearest matrix with singular values near one, in the type of the input.

    Source: Muon (Jordan et al., 2024), which runs in bfloat16; on CPUs without AVX512-BF16 float32 is the faster one.
    """
    a, b, c = NEWTON_SCHULZ
    work: Tensor = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    work = work / (work.norm() + 1e-7)
    for _ in range(steps):
        gram = work @ work.T
        work = a * work + (b * gram + c * gram @ gram) @ work
    return work if matrix.shape[0] <= matrix.shape[1] else work.T
