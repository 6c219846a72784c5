"""Turns an answer into the arrays of a response, shaped and typed as `tensors.py` declares them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peagle_trt_repo.tensors import METRIC_OUTPUTS, OWN_OUTPUTS, PEAGLE_OUTPUTS, DataType

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
    finish_reason: str


def answer_arrays(text: str, token_ids: Sequence[int]) -> dict[str, NDArray[np.generic]]:
    """Arrays of the answer, or of one piece of it.

    Args:
        text: The piece.
        token_ids: Its tokens.

    Returns:
        `text_output` [1,1], `output_ids` [1,n] and `sequence_length` [1,1].
    """
    return {
        "text_output": shaped([text.encode("utf-8")], "STRING"),
        "output_ids": shaped(list(token_ids), "INT32"),
        "sequence_length": shaped([len(token_ids)], "INT32"),
    }


def text_length_array(text: str) -> NDArray[np.generic]:
    """`text_bytes`, [1,1]."""
    return shaped([len(text.encode("utf-8"))], "INT32")


def metric_arrays(metrics: AnswerMetrics) -> dict[str, NDArray[np.generic]]:
    """Arrays of the metrics, [1,1] each, [1,K] for those by position."""
    names = [field.name for field in (*METRIC_OUTPUTS, *OWN_OUTPUTS)]
    return {name: shaped(_as_row(getattr(metrics, name)), _DATA_TYPES[name]) for name in names}


def _as_row(value: object) -> Sequence[object]:
    if isinstance(value, tuple):
        return value
    return [value.encode() if isinstance(value, str) else value]


def shaped(values: Sequence[object], data_type: DataType) -> NDArray[np.generic]:
    """Values of one request as an array with a batch dimension, [1, n]."""
    array: NDArray[np.generic] = np.array(values, dtype=NUMPY_TYPES[data_type]).reshape(1, len(values))
    return array
