"""The loss against the target over the draft vocabulary, computed in pieces that fit the cache.

Shape letters: S supervised rows, U distinct target positions, H hidden, V draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from peagle_trt.train.objectives import OBJECTIVES

if TYPE_CHECKING:
    from torch import Tensor

# Rows a piece: 128 rows of 16 k float32 logits are 8 MB; the few such matrices of a piece fit a last-level cache.
ROWS_PER_PIECE = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class LossParts:
    """The loss and what is worth watching.

    Attributes:
        loss_S: Loss of each row, [S], differentiable; a KL divergence under the default objective.
        agrees_S: Whether drafter and target prefer the same token, [S] bool.
    """

    loss_S: Tensor
    agrees_S: Tensor


def distillation_loss(
    drafted_SH: Tensor,
    target_UH: Tensor,
    target_indices_S: Tensor,
    head_VH: Tensor,
    objective: str = "kl",
) -> LossParts:
    """A loss between target and drafter over the draft vocabulary, float32 sums over logits of `head_VH`'s type.

    The lm_head is frozen, so the gradient of the hidden rows is formed in the same pass that computes the loss and no
    [S, V] matrix outlives its piece.

    Args:
        drafted_SH: The drafter's final hidden rows, [S, H].
        target_UH: The target's final hidden rows, [U, H].
        target_indices_S: Which target row each drafted row should match, [S] int64.
        head_VH: lm_head's rows of the draft vocabulary, in the type to compute with.
        objective: One of `objectives.OBJECTIVES`.

    Returns:
        The loss with its parts.
    """
    losses, agrees = _Distillation.apply(  # type: ignore[no-untyped-call]
        drafted_SH, target_UH, target_indices_S, head_VH, objective
    )
    return LossParts(loss_S=losses, agrees_S=agrees)


class _Distillation(torch.autograd.Function):
    """One pass over pieces of rows, sorted so that rows of one target position share its softmax."""

    @staticmethod
    def forward(
        context: torch.autograd.function.FunctionCtx,
        drafted_SH: Tensor,
        target_UH: Tensor,
        target_indices_S: Tensor,
        head_VH: Tensor,
        objective: str,
    ) -> tuple[Tensor, Tensor]:
        order = torch.argsort(target_indices_S, stable=True)
        gradient_SH = torch.empty_like(drafted_SH)
        loss_S = torch.empty(len(order), device=drafted_SH.device)
        agrees_S = torch.empty(len(order), dtype=torch.bool, device=drafted_SH.device)
        for piece in torch.split(order, ROWS_PER_PIECE):
            wanted, places = torch.unique_consecutive(target_indices_S[piece], return_inverse=True)
            target_logits = (target_UH[wanted].to(head_VH.dtype) @ head_VH.T).float()
            logits = (drafted_SH[piece].to(head_VH.dtype) @ head_VH.T).float()
            agrees_S[piece] = logits.argmax(dim=-1) == target_logits.argmax(dim=-1)[places]
            target_log = target_logits.log_softmax(dim=-1)[places]
            loss_S[piece], slope = OBJECTIVES[objective](target_log, logits.log_softmax(dim=-1))
            gradient_SH[piece] = (slope.to(head_VH.dtype) @ head_VH).float()
        context.save_for_backward(gradient_SH)
        context.mark_non_differentiable(agrees_S)
        return loss_S, agrees_S

    @staticmethod
    def backward(
        context: torch.autograd.function.FunctionCtx, loss_gradient_S: Tensor, *_: Tensor
    ) -> tuple[Tensor | None, ...]:
        (gradient_SH,) = context.saved_tensors  # type: ignore[attr-defined]
        return gradient_SH * loss_gradient_S[:, None], None, None, None, None
