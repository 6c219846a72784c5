"""Weights of mask rows by whether serving would still read them: a draft behind a refused one is thrown away.

Shape letters: S supervised rows, C context slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def survival_weights(
    origins_S: Tensor,
    anchors_S: Tensor,
    depths_S: Tensor,
    agrees_S: Tensor,
    first_agrees: dict[int, Tensor],
    refused_weight: float,
) -> Tensor:
    """One for a row whose earlier drafts all agree with the target, `refused_weight` behind one that does not.

    Greedy acceptance length is the mean, over bonus positions, of how many drafts agree before the first that does
    not. Its gradient reaches a row only where all drafts before it agree; elsewhere the row's loss trains what no
    verify step ever reads. The weights are constants of a step: no gradient flows through them.

    Args:
        origins_S: Sequence of each row, [S] int64.
        anchors_S: Slot of its rollout's bonus token, [S] int64.
        depths_S: Its depth, [S] int64; rollouts are complete up to their last depth, and every depth beyond 0 of a
            rollout is among the rows.
        agrees_S: Whether drafter and target prefer the same token, [S] bool.
        first_agrees: The same for the context slots of each sequence, [C] bool.
        refused_weight: From 0 to 1; 1 makes all rows alike.

    Returns:
        [S] float.

    Source: the definition of acceptance length under greedy verification (P-EAGLE, arXiv 2602.01469, section 5).
    """
    import torch

    weights_S = torch.ones(len(depths_S), device=depths_S.device)
    rollouts_S = torch.unique(torch.stack([origins_S, anchors_S], dim=1), dim=0, return_inverse=True)[1]
    # Of every rollout: whether all of its drafts so far agree.
    survives = torch.ones(len(depths_S), dtype=torch.bool, device=depths_S.device)
    for origin in torch.unique(origins_S).tolist():
        begins = (origins_S == origin) & (depths_S == 1)
        survives[rollouts_S[begins]] = first_agrees[origin][anchors_S[begins]]
    for depth in range(1, int(depths_S.max()) + 1 if len(depths_S) else 1):
        rows = torch.nonzero(depths_S == depth)[:, 0]
        rollouts = rollouts_S[rows]
        weights_S[rows] = torch.where(survives[rollouts], 1.0, refused_weight)
        survives[rollouts] &= agrees_S[rows]
    return weights_S
