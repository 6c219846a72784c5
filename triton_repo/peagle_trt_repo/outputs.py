"""Turns an answer into the arrays of a response, shaped and typed as `tensors.py` declares them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peagle_trt_repo.tensors import METRIC_OUTPUTS, OWN_OUTPUTS, PEAGLE_OUTPUTS, DataType

TopLogProbs = Sequence[tuple[int, float]]
"""The likeliest tokens in one place."""

NUMPY_TYPES: dict[DataType, type[np.generic]] = {
    "BOOL": np.bool_,
    "FP16": np.float16,
    "FP32": np.float32,
    "INT32": np.int32,
    "UINT64": np.uint64,
    "STRING": np.object_,
}

_DATA_TYPES: dict[str, DataType] = {field.name: field.data_type for field in PEAGLE_OUTPUTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerMetrics:
    """What a finished answer cost; the names are those of the outputs.

    Of several answers all numbers but the prompt's are sums, and `finish_reason` has one entry each.
    `accepted_by_position` holds a single 0 for an answer that was decoded without drafts.
    """

    num_input_tokens: int
    num_output_tokens: int
    total_draft_tokens: int
    total_accepted_draft_tokens: int
    acceptance_rate: float
    acceptance_length: float
    num_verify_steps: int
    accepted_by_position: tuple[int, ...]
    total_looked_up_tokens: int
    finish_reason: tuple[str, ...]


def answer_arrays(texts: Sequence[str], token_ids: Sequence[Sequence[int]]) -> dict[str, NDArray[np.generic]]:
    """Arrays of N answers, or of a piece of one.

    Args:
        texts: The answers or the piece.
        token_ids: Their tokens.

    Returns:
        `text_output` [1,N], `output_ids` [1, all tokens] and `sequence_length` [1,N].
    """
    return {
        "text_output": shaped([text.encode("utf-8") for text in texts], "STRING"),
        "output_ids": shaped([token_id for ids in token_ids for token_id in ids], "INT32"),
        "sequence_length": shaped([len(ids) for ids in token_ids], "INT32"),
    }


def text_length_array(texts: Sequence[str]) -> NDArray[np.generic]:
    """`text_bytes`, [1,N]."""
    return shaped([len(text.encode("utf-8")) for text in texts], "INT32")


def log_prob_arrays(
    cumulative: Sequence[float], log_probs: Sequence[Sequence[float]]
) -> dict[str, NDArray[np.generic]]:
    """Log probabilities as the classic outputs have them.

    Args:
        cumulative: Sum over all tokens of each of N answers so far.
        log_probs: Those of the tokens of this response.

    Returns:
        `cum_log_probs` [1,N] and `output_log_probs` [1, N, most tokens], filled up with 0.
    """
    padded = np.zeros((1, len(log_probs), max(map(len, log_probs))), np.float32)
    for index, values in enumerate(log_probs):
        padded[0, index, : len(values)] = values
    return {"cum_log_probs": shaped(list(cumulative), "FP32"), "output_log_probs": padded}


def top_log_prob_arrays(top: Sequence[TopLogProbs]) -> dict[str, NDArray[np.generic]]:
    """The likeliest tokens in every place, of several answers one after the other.

    Args:
        top: As many in every place.

    Returns:
        `top_token_ids` and `top_log_probs`, [1, all tokens, likeliest tokens].
    """
    count = len(top[0]) if top else 0
    ids = np.array([[token_id for token_id, _ in place] for place in top], np.int32)
    values = np.array([[value for _, value in place] for place in top], np.float32)
    return {
        "top_token_ids": ids.reshape(1, len(top), count),
        "top_log_probs": values.reshape(1, len(top), count),
    }


def metric_arrays(metrics: AnswerMetrics) -> dict[str, NDArray[np.generic]]:
    """Arrays of the metrics, [1,1] each, [1,K] for those by position."""
    names = [field.name for field in (*METRIC_OUTPUTS, *OWN_OUTPUTS)]
    return {name: shaped(_as_row(getattr(metrics, name)), _DATA_TYPES[name]) for name in names}


def _as_row(value: object) -> Sequence[object]:
    values = value if isinstance(value, tuple) else (value,)
    return [entry.encode() if isinstance(entry, str) else entry for entry in values]


def shaped(values: Sequence[object], data_type: DataType) -> NDArray[np.generic]:
    """Values of one request as an array with a batch dimension, [1, n]."""
    array: NDArray[np.generic] = np.array(values, dtype=NUMPY_TYPES[data_type]).reshape(1, len(values))
    return array
