"""Plain torch forms of the operators, and the shapes of what they return."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def parallel_draft(
    next_token_ids: Tensor,
    fused_hidden: Tensor,
    num_accepted: Tensor,
    start_positions: Tensor,
    mask_token_ids: Tensor,
    embedding: Tensor,
    fused_mask_hidden: Tensor,
    embedding_norm_weight: Tensor,
    hidden_norm_weight: Tensor,
    *,
    epsilon: float,
    norm_before_residual: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ports of contract.py, in its order; floats are of `fused_hidden`'s type, computed in float32."""
    import torch

    rows, slots = next_token_ids.shape[1], mask_token_ids.shape[0]
    row_1W = torch.arange(rows + slots - 1, dtype=torch.int32, device=next_token_ids.device)[None, :]
    accepted_B1 = num_accepted[:, None]
    is_real_BW, is_live_BW = row_1W <= accepted_B1, row_1W < accepted_B1 + slots
    # Filled, not selected against a number: that would be copied to the GPU, which no CUDA graph may do.
    unreal_BW = mask_token_ids[:1].expand(is_live_BW.shape).masked_fill(~is_live_BW, 0)
    tokens_BW = torch.where(is_real_BW, _pad_rows(next_token_ids, slots - 1), unreal_BW)
    # Selected, not multiplied by 0: a rejected row may hold NaN.
    unreal_BWH = torch.where(is_live_BW[:, :, None], fused_mask_hidden, torch.zeros_like(fused_mask_hidden))
    hidden_BWH = torch.where(is_real_BW[:, :, None], _pad_rows(fused_hidden, slots - 1), unreal_BWH)
    normed_BWH = _rms_norm(hidden_BWH, hidden_norm_weight, epsilon)
    embedded_BWH = _rms_norm(embedding[tokens_BW], embedding_norm_weight, epsilon)
    layer_input = torch.cat([embedded_BWH, normed_BWH], dim=-1)
    positions = (start_positions[:, None] + row_1W).masked_fill(~is_live_BW, 0)
    sample_rows = accepted_B1 + row_1W[:, :slots]
    return layer_input, normed_BWH if norm_before_residual else hidden_BWH, positions, sample_rows


def fake_parallel_draft(
    next_token_ids: Tensor,
    fused_hidden: Tensor,
    num_accepted: Tensor,
    start_positions: Tensor,
    mask_token_ids: Tensor,
    embedding: Tensor,
    fused_mask_hidden: Tensor,
    embedding_norm_weight: Tensor,
    hidden_norm_weight: Tensor,
    *,
    epsilon: float,
    norm_before_residual: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Empty outputs of `parallel_draft`."""
    (batch, rows), slots, hidden = next_token_ids.shape, mask_token_ids.shape[0], fused_hidden.shape[2]
    width = rows + slots - 1
    return (
        fused_hidden.new_empty(batch, width, 2 * hidden),
        fused_hidden.new_empty(batch, width, hidden),
        next_token_ids.new_empty(batch, width),
        next_token_ids.new_empty(batch, slots),
    )


def select_draft(hidden: Tensor, sample_rows: Tensor, lm_head: Tensor, draft_to_target: Tensor) -> Tensor:
    """Ports of contract_select_draft.py, in its order."""
    import torch

    # torch's argmax takes the first of equals, as the contract wants.
    best_BK = _logits(hidden, sample_rows, lm_head).argmax(dim=-1)
    return draft_to_target[best_BK].to(torch.int32)


def fake_select_draft(hidden: Tensor, sample_rows: Tensor, lm_head: Tensor, draft_to_target: Tensor) -> Tensor:
    """An empty output of `select_draft`."""
    return sample_rows.new_empty(sample_rows.shape)


def select_draft_top_k(
    hidden: Tensor,
    sample_rows: Tensor,
    lm_head: Tensor,
    draft_to_target: Tensor,
    temperature: Tensor,
    *,
    candidates: int,
) -> tuple[Tensor, Tensor]:
    """Ports of contract_select_draft.py, in its order."""
    import torch

    # A stable sort keeps the lower id first among equals; `topk` promises no order.
    ordered = _logits(hidden, sample_rows, lm_head).sort(dim=-1, descending=True, stable=True)
    values_BKM, best_BKM = ordered.values[..., :candidates], ordered.indices[..., :candidates]
    below_BKM = (values_BKM - values_BKM[..., :1]) / temperature[:, None, None]
    return draft_to_target[best_BKM].to(torch.int32), below_BKM.softmax(dim=-1)


def fake_select_draft_top_k(
    hidden: Tensor,
    sample_rows: Tensor,
    lm_head: Tensor,
    draft_to_target: Tensor,
    temperature: Tensor,
    *,
    candidates: int,
) -> tuple[Tensor, Tensor]:
    """Empty outputs of `select_draft_top_k`."""
    shape = (*sample_rows.shape, candidates)
    return sample_rows.new_empty(shape), temperature.new_empty(shape)


def _logits(hidden: Tensor, sample_rows: Tensor, lm_head: Tensor) -> Tensor:
    """[B, K, D] float32, finite; a NaN counts as the lowest number."""
    import torch

    indices_BKH = sample_rows.long()[:, :, None].expand(-1, -1, hidden.shape[2])
    rows_BKH = hidden.gather(1, indices_BKH).float()
    lowest = torch.finfo(torch.float32).min
    return (rows_BKH @ lm_head.float().T).nan_to_num(nan=lowest)


def _pad_rows(values: Tensor, count: int) -> Tensor:
    """`count` more rows along axis 1, of zeros."""
    import torch

    return torch.cat([values, values.new_zeros(values.shape[0], count, *values.shape[2:])], dim=1)


def _rms_norm(values: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """In float32, rounded once, to the type of `weight`."""
    wide = values.float()
    scale = (wide.square().mean(dim=-1, keepdim=True) + epsilon).rsqrt()
    return (wide * scale * weight.float()).to(weight.dtype)
