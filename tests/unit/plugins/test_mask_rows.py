"""Folding the mask slots of layer 0 leaves its numbers as they are."""

from __future__ import annotations

import numpy as np
import pytest

from peagle_trt_plugins.mask_rows import Projection, fold_mask_rows, place_mask_rows, project
from peagle_trt_plugins.reference import expand_slots
from tests.support.plugin_cases import EPSILON, TOLERANCES, DraftCase

HEAD = 8
EXPANDED = ("next_token_ids", "num_accepted", "start_positions", "mask_token_ids")
CASES = [
    DraftCase(batch=3, rows=slots + 1, slots=slots, hidden=hidden, accepted=accepted)
    for slots, hidden in ((1, 16), (5, 24), (16, 40))
    for accepted in ("none", "between", "all")
]


def projections(hidden: int, kind: str) -> tuple[Projection, ...]:
    """Queries, keys and values of four, two and two heads."""
    rng = np.random.default_rng(hidden)
    made = []
    for heads in (4, 2, 2):
        # As wide as trained ones: larger scores would make softmax a switch that magnifies the last bit.
        weight = (rng.standard_normal((heads * HEAD, 2 * hidden)) / np.sqrt(2 * hidden)).astype(np.float32)
        bias = rng.standard_normal(heads * HEAD).astype(np.float32) if kind == "bias" else None
        norm = rng.standard_normal(HEAD).astype(np.float32) if kind == "head norm" else None
        made.append(Projection(weight_NC=weight, bias_N=bias, head_norm_weight=norm))
    return tuple(made)


def attend(query: np.ndarray, key: np.ndarray, value: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Rotary causal attention of one sequence, grouped four heads to two: [W, 4 * HEAD]."""
    query, key, value = (rows.reshape(len(rows), -1, HEAD) for rows in (query, key, value))
    query, key = rotate(query, positions), rotate(key, positions)
    scores = np.einsum("qhd,khd->hqk", query, np.repeat(key, 2, axis=1)) / np.sqrt(HEAD)
    scores = np.where(np.tri(len(query), dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, np.repeat(value, 2, axis=1)).reshape(len(query), -1)


def rotate(heads: np.ndarray, positions: np.ndarray) -> np.ndarray:
    angles = positions[:, None, None] / 10_000 ** (np.arange(HEAD // 2) / (HEAD // 2))
    first, second = np.split(heads, 2, axis=-1)
    turned = (first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles))
    return np.concatenate(turned, axis=-1)


@pytest.mark.parametrize("kind", ["plain", "bias", "head norm"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_is_the_same_with_folded_mask_rows(case: DraftCase, kind: str) -> None:
    inputs, layers = case.inputs(), projections(case.hidden, kind)
    layer_input, _, positions, _ = case.expected()
    slots = expand_slots(*(inputs[name] for name in EXPANDED))
    rows_TC = layer_input.reshape(-1, 2 * case.hidden).astype(np.float64)
    whole = [project(rows_TC, layer, epsilon=EPSILON).reshape(*positions.shape, -1) for layer in layers]
    masks = fold_mask_rows(
        inputs["embedding"][inputs["mask_token_ids"][0]],
        inputs["fused_mask_hidden"],
        inputs["embedding_norm_weight"],
        inputs["hidden_norm_weight"],
        layers,
        epsilon=EPSILON,
    )
    folded = [
        place_mask_rows(rows[:, : case.rows], mask, inputs["num_accepted"], slots=case.slots)
        for rows, mask in zip(whole, masks, strict=True)
    ]
    for sequence in range(case.batch):
        is_live = slots.is_real_BW[sequence] | slots.is_mask_BW[sequence]
        found, expected = (
            attend(*(rows[sequence] for rows in part), positions[sequence])[is_live] for part in (folded, whole)
        )
        np.testing.assert_allclose(found, expected, rtol=TOLERANCES["float32"], atol=TOLERANCES["float32"])


def test_a_rejected_rows_projection_is_not_read() -> None:
    projected = np.full((1, 3, 2), np.nan)
    projected[0, 0] = [5, 6]
    placed = place_mask_rows(projected, np.array([1, 2], np.float32), np.array([0], np.int32), slots=3)
    assert placed.tolist() == [[[5, 6], [1, 2], [1, 2], [1, 2], [1, 2]]]
