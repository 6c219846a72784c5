"""numpy reference of `peagle::ParallelDraft`: the numbers every other form must give. Letters as in contract.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.floating[Any]]
"""float32, float16 or bfloat16 widened to float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """Which token, position and kind every row has.

    Attributes:
        token_ids_BW: int32; 0 for padding.
        positions_BW: int32; 0 for padding.
        is_real_BW: bool; rows that carry a hidden state of the target.
        is_mask_BW: bool; rows that carry the mask token and the mask hidden state.
        sample_rows_BK: int32; rows that predict the drafts.
    """

    token_ids_BW: NDArray[np.int32]
    positions_BW: NDArray[np.int32]
    is_real_BW: NDArray[np.bool_]
    is_mask_BW: NDArray[np.bool_]
    sample_rows_BK: NDArray[np.int32]


def expand_slots(
    next_token_ids_BR: NDArray[np.int32],
    num_accepted_B: NDArray[np.int32],
    start_positions_B: NDArray[np.int32],
    mask_token_ids_K: NDArray[np.int32],
) -> Slots:
    """Lay out the rows of one draft pass.

    Args:
        next_token_ids_BR: [B, R] int32, token that follows each row.
        num_accepted_B: [B] int32, 0..R-1.
        start_positions_B: [B] int32, position of row 0.
        mask_token_ids_K: [K] int32, the mask token K times, K >= 1.

    Returns:
        The layout of W = R + K - 1 rows.

    Raises:
        ValueError: `num_accepted_B` leaves 0..R-1, or K is 0.
    """
    batch, rows = next_token_ids_BR.shape
    slots = len(mask_token_ids_K)
    if slots < 1:
        raise ValueError("`mask_token_ids` is empty; expected one entry for each drafted slot")
    if np.any(num_accepted_B < 0) or np.any(num_accepted_B >= rows):
        raise ValueError(f"`num_accepted` is {num_accepted_B.tolist()}; expected 0..{rows - 1} for {rows} rows")
    accepted_B1 = num_accepted_B[:, None]
    row_1W = np.arange(rows + slots - 1, dtype=np.int32)[None, :]
    is_real_BW = row_1W <= accepted_B1
    is_mask_BW = ~is_real_BW & (row_1W < accepted_B1 + slots)
    token_ids_BW = np.where(is_mask_BW, mask_token_ids_K[0], np.int32(0))
    token_ids_BW[:, :rows] = np.where(is_real_BW[:, :rows], next_token_ids_BR, token_ids_BW[:, :rows])
    positions_BW = np.where(is_real_BW | is_mask_BW, start_positions_B[:, None] + row_1W, 0)
    sample_rows_BK = accepted_B1 + np.arange(slots, dtype=np.int32)[None, :]
    return Slots(
        token_ids_BW=token_ids_BW.astype(np.int32),
        positions_BW=positions_BW.astype(np.int32),
        is_real_BW=is_real_BW,
        is_mask_BW=is_mask_BW,
        sample_rows_BK=sample_rows_BK.astype(np.int32).reshape(batch, slots),
    )


def parallel_draft(
    next_token_ids_BR: NDArray[np.int32],
    fused_hidden_BRH: Floats,
    num_accepted_B: NDArray[np.int32],
    start_positions_B: NDArray[np.int32],
    mask_token_ids_K: NDArray[np.int32],
    embedding_VH: Floats,
    fused_mask_hidden_H: Floats,
    embedding_norm_weight_H: Floats,
    hidden_norm_weight_H: Floats,
    *,
    epsilon: float,
    norm_before_residual: bool = False,
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int32], NDArray[np.int32]]:
    """Layer 0's input for all slots, in float32 whatever the input's type.

    Args and returns: the ports of contract.py, in its order.

    Raises:
        ValueError: As `expand_slots`.
    """
    slots = expand_slots(next_token_ids_BR, num_accepted_B, start_positions_B, mask_token_ids_K)
    rows = next_token_ids_BR.shape[1]
    hidden_BWH = np.zeros((*slots.token_ids_BW.shape, fused_hidden_BRH.shape[2]), np.float32)
    hidden_BWH[slots.is_mask_BW] = fused_mask_hidden_H.astype(np.float32)
    is_real_BR = slots.is_real_BW[:, :rows]
    # Indexing with the mask copies real rows only: what a rejected row holds, NaN included, never arrives.
    hidden_BWH[:, :rows][is_real_BR] = fused_hidden_BRH[is_real_BR].astype(np.float32)
    embedded_BWH = embedding_VH[slots.token_ids_BW].astype(np.float32)
    normed_BWH = rms_norm(hidden_BWH, hidden_norm_weight_H, epsilon)
    layer_input = np.concatenate([rms_norm(embedded_BWH, embedding_norm_weight_H, epsilon), normed_BWH], axis=-1)
    residual_BWH = normed_BWH if norm_before_residual else hidden_BWH
    return layer_input, residual_BWH, slots.positions_BW, slots.sample_rows_BK


def rms_norm(values: Floats, weight: Floats, epsilon: float) -> NDArray[np.float32]:
    """RMSNorm over the last axis, computed in float32. Source: arXiv 1910.07467."""
    values32 = values.astype(np.float32)
    scale = 1.0 / np.sqrt(np.mean(np.square(values32), axis=-1, keepdims=True) + np.float32(epsilon))
    normed: NDArray[np.float32] = (values32 * scale * weight.astype(np.float32)).astype(np.float32)
    return normed
