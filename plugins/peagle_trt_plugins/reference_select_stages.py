"""numpy reference of the stages of `SelectDraft`. Letters as in contract_select_stages.py."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peagle_trt_plugins.reference import Floats
from peagle_trt_plugins.reference_select_draft import draft_logits


def select_blocks(
    hidden_BWH: Floats,
    sample_rows_BK: NDArray[np.int32],
    lm_head_DH: Floats,
    *,
    candidates: int,
    ids_per_block: int,
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """The best of every block of `ids_per_block` ids; ports of contract_select_stages.py, in its order.

    Returns:
        [B, K, E] float32 and int32; what a block lacks is -inf and id -1, which no form has to give.

    Raises:
        ValueError: A sampled row lies outside 0..W-1.
    """
    logits_BKD = draft_logits(hidden_BWH, sample_rows_BK, lm_head_DH)
    values, ids = [], []
    for first in range(0, logits_BKD.shape[2], ids_per_block):
        block = logits_BKD[..., first : first + ids_per_block]
        best = np.argsort(-block, axis=-1, kind="stable")[..., :candidates]
        missing = ((0, 0), (0, 0), (0, candidates - best.shape[2]))
        values.append(np.pad(np.take_along_axis(block, best, axis=-1), missing, constant_values=-np.inf))
        ids.append(np.pad(best + first, missing, constant_values=-1))
    return np.concatenate(values, axis=-1).astype(np.float32), np.concatenate(ids, axis=-1).astype(np.int32)


def merge_best(
    block_values_BKE: NDArray[np.float32], block_ids_BKE: NDArray[np.int32], draft_to_target_D: NDArray[np.int64]
) -> NDArray[np.int32]:
    """The best draft of every slot: [B, K] int32, ids of the target's vocabulary."""
    best_BK1 = np.argmax(block_values_BKE, axis=-1, keepdims=True)
    ids_BK: NDArray[np.int32] = draft_to_target_D[np.take_along_axis(block_ids_BKE, best_BK1, axis=-1)[..., 0]]
    return ids_BK.astype(np.int32)


def merge_candidates(
    block_values_BKE: NDArray[np.float32],
    block_ids_BKE: NDArray[np.int32],
    draft_to_target_D: NDArray[np.int64],
    temperature_B: NDArray[np.float32],
    *,
    candidates: int,
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The M best drafts of every slot and their softmax over the temperature, each [B, K, M]."""
    best_BKM = np.argsort(-block_values_BKE, axis=-1, kind="stable")[..., :candidates]
    values_BKM = np.take_along_axis(block_values_BKE, best_BKM, axis=-1).astype(np.float64)
    weights_BKM = np.exp((values_BKM - values_BKM[..., :1]) / temperature_B[:, None, None])
    probabilities_BKM = weights_BKM / weights_BKM.sum(axis=-1, keepdims=True)
    ids_BKM = draft_to_target_D[np.take_along_axis(block_ids_BKE, best_BKM, axis=-1)]
    return ids_BKM.astype(np.int32), probabilities_BKM.astype(np.float32)
