"""numpy reference of `peagle::SelectDraft` and `peagle::SelectDraftTopK`. Letters as in contract_select_draft.py."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peagle_trt_plugins.reference import Floats

_LIMITS = np.finfo(np.float32)


def select_draft(
    hidden_BWH: Floats,
    sample_rows_BK: NDArray[np.int32],
    lm_head_DH: Floats,
    draft_to_target_D: NDArray[np.int64],
) -> NDArray[np.int32]:
    """The best draft of every slot; ports of contract_select_draft.py, in its order.

    Returns:
        [B, K] int32, ids of the target's vocabulary.

    Raises:
        ValueError: A sampled row lies outside 0..W-1.
    """
    # numpy's argmax takes the first of equals, which is the contract's rule.
    best_BK = np.argmax(draft_logits(hidden_BWH, sample_rows_BK, lm_head_DH), axis=-1)
    ids_BK: NDArray[np.int32] = draft_to_target_D[best_BK].astype(np.int32)
    return ids_BK


def select_draft_top_k(
    hidden_BWH: Floats,
    sample_rows_BK: NDArray[np.int32],
    lm_head_DH: Floats,
    draft_to_target_D: NDArray[np.int64],
    temperature_B: NDArray[np.float32],
    *,
    candidates: int,
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The M best drafts of every slot and the distribution to draw one from.

    Args and returns: the ports of contract_select_draft.py, in its order.

    Raises:
        ValueError: A sampled row lies outside 0..W-1, a temperature is not above 0, or M outside 1..D.
    """
    if not np.all(temperature_B > 0):
        raise ValueError(f"`temperature` is {temperature_B.tolist()}; expected numbers above 0")
    if not 1 <= candidates <= len(lm_head_DH):
        raise ValueError(f"`candidates` is {candidates}; expected 1..{len(lm_head_DH)}, the draft vocabulary")
    logits_BKD = draft_logits(hidden_BWH, sample_rows_BK, lm_head_DH)
    best_BKM = np.argsort(-logits_BKD, axis=-1, kind="stable")[..., :candidates]
    values_BKM = np.take_along_axis(logits_BKD, best_BKM, axis=-1).astype(np.float64)
    # The largest comes first, so that no exponent is above 0 and none of the sums is.
    weights_BKM = np.exp((values_BKM - values_BKM[..., :1]) / temperature_B[:, None, None])
    probabilities_BKM = weights_BKM / weights_BKM.sum(axis=-1, keepdims=True)
    return draft_to_target_D[best_BKM].astype(np.int32), probabilities_BKM.astype(np.float32)


def draft_logits(hidden_BWH: Floats, sample_rows_BK: NDArray[np.int32], lm_head_DH: Floats) -> NDArray[np.float32]:
    """Logits of the sampled rows alone, [B, K, D] float32, finite: NaN counts as the lowest number.

    Raises:
        ValueError: A sampled row lies outside 0..W-1.
    """
    width = hidden_BWH.shape[1]
    if np.any(sample_rows_BK < 0) or np.any(sample_rows_BK >= width):
        raise ValueError(f"`sample_rows` is {sample_rows_BK.tolist()}; expected 0..{width - 1} for {width} rows")
    rows_BKH = np.take_along_axis(hidden_BWH, sample_rows_BK[:, :, None], axis=1).astype(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        logits_BKD = rows_BKH @ lm_head_DH.astype(np.float32).T
    numbers_BKD = np.where(np.isnan(logits_BKD), _LIMITS.min, logits_BKD)
    finite: NDArray[np.float32] = np.clip(numbers_BKD, _LIMITS.min, _LIMITS.max).astype(np.float32)
    return finite
