"""What a drafter is trained for: the loss of a row and its slope over the draft logits, in closed form.

p is the target's distribution over the draft vocabulary, q the drafter's; alpha = sum min(p, q) is the probability that
a token sampled from q is accepted.

Shape letters: b rows, V draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    # (log p [b, V], log q [b, V]) to (loss [b], slope of the loss over the logits of q [b, V]); may overwrite log q.
    Objective = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

# Of the target's tokens, those that `topk` tells apart.
TOP_TOKENS = 32
# How fast the hybrid turns from KL to total variation as acceptance grows.
HYBRID_RATE = 3.0
# Below this acceptance, -log(alpha) and its slope are those at the floor: float32 has no more to say.
SMALLEST_ACCEPTANCE = 1e-6


def forward_kl(target_log: Tensor, draft_log: Tensor) -> tuple[Tensor, Tensor]:
    """KL(p || q): the drafter must cover all that the target may say."""
    target = target_log.exp()
    loss = (target * target_log).sum(dim=-1) - (target * draft_log).sum(dim=-1)
    return loss, draft_log.exp_().sub_(target)


def cross_entropy(target_log: Tensor, draft_log: Tensor) -> tuple[Tensor, Tensor]:
    """Cross entropy against the target's likeliest token, all that greedy serving asks for."""
    best = target_log.argmax(dim=-1, keepdim=True)
    loss = -draft_log.gather(1, best)[:, 0]
    slope = draft_log.exp_()
    return loss, slope.scatter_add_(1, best, slope.new_full(best.shape, -1.0))


def top_tokens_kl(target_log: Tensor, draft_log: Tensor) -> tuple[Tensor, Tensor]:
    """KL seen through the target's likeliest tokens and one bin for all others; never more than the whole KL."""
    import torch

    kept_log, kept = target_log.topk(min(TOP_TOKENS, target_log.shape[-1] - 1), dim=-1)
    target_kept, draft_kept_log = kept_log.exp(), draft_log.gather(1, kept)
    draft = draft_log.exp_()
    smallest = torch.finfo(draft.dtype).tiny
    target_rest = (1.0 - target_kept.sum(dim=-1)).clamp(min=smallest)
    draft_rest = draft.scatter(1, kept, 0.0).sum(dim=-1).clamp(min=smallest)
    loss = (target_kept * (kept_log - draft_kept_log)).sum(dim=-1)
    loss += target_rest * (target_rest.log() - draft_rest.log())
    slope = draft * (1.0 - target_rest / draft_rest)[:, None]
    return loss, slope.scatter_(1, kept, draft_kept_log.exp() - target_kept)


def total_variation(target_log: Tensor, draft_log: Tensor) -> tuple[Tensor, Tensor]:
    """1 - alpha, the rate of rejection itself; its slope vanishes where p and q hardly overlap."""
    acceptance, slope = _acceptance(target_log.exp(), draft_log.exp_())
    return 1.0 - acceptance, slope.neg_()


def negative_log_acceptance(target_log: Tensor, draft_log: Tensor) -> tuple[Tensor, Tensor]:
    """-log(alpha): total variation with a slope that does not vanish.

    Source: LK losses (arXiv 2602.23881).
    """
    acceptance, slope = _acceptance(target_log.exp(), draft_log.exp_())
    acceptance = acceptance.clamp(min=SMALLEST_ACCEPTANCE)
    return -acceptance.log(), slope.div_(-acceptance[:, None])


def hybrid(target_log: Tensor, draft_log: Tensor) -> tuple[Tensor, Tensor]:
    """KL where drafts are mostly refused, total variation where they are mostly accepted.

    lambda KL + (1 - lambda) (1 - alpha), with lambda = exp(-3 alpha) held fixed in the slope.

    Source: LK losses (arXiv 2602.23881), and `lk_hybrid` of vLLM's speculators for the constant.
    """
    target = target_log.exp()
    divergence = (target * (target_log - draft_log)).sum(dim=-1)
    draft = draft_log.exp_()
    acceptance, acceptance_slope = _acceptance(target, draft)
    share = (-HYBRID_RATE * acceptance).exp()
    loss = share * divergence + (1.0 - share) * (1.0 - acceptance)
    slope = share[:, None] * (draft - target) - (1.0 - share)[:, None] * acceptance_slope
    return loss, slope


OBJECTIVES: dict[str, Objective] = {
    "kl": forward_kl,
    "ce": cross_entropy,
    "topk": top_tokens_kl,
    "tv": total_variation,
    "nla": negative_log_acceptance,
    "lk": hybrid,
}


def _acceptance(target: Tensor, draft: Tensor) -> tuple[Tensor, Tensor]:
    """Alpha of each row and its slope over the draft's logits."""
    import torch

    acceptance = torch.minimum(target, draft).sum(dim=-1)
    # Only tokens that the drafter gives less than the target does add to alpha when their logit grows.
    gaining = draft.where(draft < target, 0.0)
    return acceptance, gaining - draft * gaining.sum(dim=-1, keepdim=True)
