"""Which rows a drafter's pass reads after a verify step, in shapes that never depend on values.

Letters: G generation requests, K drafts, J = K+1 rows of a verify step, W = 2K rows of a drafter's pass, H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRows:
    """Rows of one pass: accepted tokens, then masked slots, then padding that nobody reads.

    Attributes:
        token_ids_GW: Token of every row.
        hidden_GWH: Fused state of every row.
        positions_GW: Rotary positions, which are also places in the drafter's cache.
        sample_rows_GK: Rows whose outputs are the K drafts.
    """

    token_ids_GW: Tensor
    hidden_GWH: Tensor
    positions_GW: Tensor
    sample_rows_GK: Tensor


def accept(target_tokens_GJ: Tensor, draft_tokens_GK: Tensor) -> Tensor:
    """How many tokens a verify step yields, the target's own included.

    Args:
        target_tokens_GJ: What the target chose after every row, [G, K+1].
        draft_tokens_GK: What had been drafted, [G, K].

    Returns:
        [G] int32, 1..K+1.

    Source: TensorRT-LLM `SpecWorkerBase._sample_and_accept_draft_tokens_base`: drafts up to the first that differs.
    """
    agrees_GK = (target_tokens_GJ[:, :-1] == draft_tokens_GK).int()
    return 1 + agrees_GK.cumprod(dim=1).sum(dim=1).int()


def expand_rows(
    accepted_GJ: Tensor,
    num_accepted_G: Tensor,
    fused_GJH: Tensor,
    first_positions_G: Tensor,
    *,
    mask_token_id: int,
    fused_mask_H: Tensor,
) -> DraftRows:
    """Lay out the pass that follows a verify step of K+1 rows.

    Row j < n carries the token that follows row j of the verify step, and that row's state; rows n to n+K-2 are masked
    slots; what lies past them is padding. The cache entries of masked slots and padding are stale: the next pass starts
    at the first of them and is as wide, so it overwrites all of them before anything looks at them.

    Args:
        accepted_GJ: Tokens the step yielded, [G, K+1]; only the first n of a row count.
        num_accepted_G: n, 1..K+1.
        fused_GJH: State of every row of the verify step, past `fc`.
        first_positions_G: Position of the step's first row, as the target counts.
        mask_token_id: Token of a masked slot.
        fused_mask_H: State of a masked slot, past `fc`.

    Source: P-EAGLE (arXiv 2602.01469, section 2); DESIGN of this project, section 5.
    """
    num_rows, num_drafts = accepted_GJ.shape[1], accepted_GJ.shape[1] - 1
    width = 2 * num_drafts
    columns_W = torch.arange(width, device=accepted_GJ.device)
    is_real_GW = columns_W < num_accepted_G[:, None]
    tokens_GW = torch.nn.functional.pad(accepted_GJ, (0, width - num_rows), value=mask_token_id)
    hidden_GWH = torch.nn.functional.pad(fused_GJH, (0, 0, 0, width - num_rows))
    return DraftRows(
        token_ids_GW=torch.where(is_real_GW, tokens_GW, mask_token_id),
        hidden_GWH=torch.where(is_real_GW[:, :, None], hidden_GWH, fused_mask_H),
        positions_GW=first_positions_G[:, None] + columns_W,
        sample_rows_GK=num_accepted_G[:, None] - 1 + torch.arange(num_drafts, device=accepted_GJ.device),
    )


def next_input_tokens(accepted_BJ: Tensor, num_accepted_B: Tensor, drafts_BK: Tensor) -> Tensor:
    """What the next verify step reads, [B, K+1]: the last token of this one, then the drafts."""
    last_B1 = accepted_BJ.gather(1, (num_accepted_B[:, None] - 1).long())
    return torch.cat([last_B1, drafts_BK], dim=1)
