"""What the loop does with an argmax in place of logits, and with candidates in place of a distribution."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from peagle_trt.decode.acceptance import Drafts, propose_candidates, verify, verify_greedily
from peagle_trt.decode.request import SamplingSettings
from peagle_trt.decode.sampling import LogitShaper, distribution
from peagle_trt.engine.protocol import DraftCandidates

VOCABULARY = 12
END = 7


@pytest.mark.parametrize("seed", range(40))
def test_an_argmax_of_every_row_decides_as_the_logits_do(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_drafts = int(rng.integers(0, 6))
    logits = rng.standard_normal((num_drafts + 1, VOCABULARY)).astype(np.float32)
    best = logits.argmax(axis=1)
    # Drafts that are mostly right, so that acceptance ends in every place.
    ids = tuple(int(best[i]) if rng.random() < 0.8 else int(rng.integers(VOCABULARY)) for i in range(num_drafts))
    settings = SamplingSettings()
    expected = verify(
        logits,
        Drafts(token_ids=ids),
        settings=settings,
        shaper=LogitShaper(settings, (), (END,), VOCABULARY),
        generator=rng,
        is_end=END.__eq__,
    )
    assert verify_greedily(best.tolist(), Drafts(token_ids=ids), is_end=END.__eq__) == expected


def candidates_of(logits_KV: np.ndarray, num_candidates: int) -> DraftCandidates:
    order = np.argsort(-logits_KV, axis=1)[:, :num_candidates]
    weights = np.exp(np.take_along_axis(logits_KV, order, axis=1))
    probabilities = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    return DraftCandidates(token_ids=order[None].astype(np.int32), probabilities=probabilities[None])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_all_candidates_are_the_distribution_at_any_temperature(temperature: float) -> None:
    logits = np.random.default_rng(3).standard_normal((2, VOCABULARY)).astype(np.float32)
    found = propose_candidates(candidates_of(logits, VOCABULARY), 0, VOCABULARY, temperature, np.random.default_rng(0))
    assert found.probabilities_KV is not None
    for row in range(2):
        expected = distribution(logits[row], SamplingSettings(temperature=temperature))
        np.testing.assert_allclose(found.probabilities_KV[row], expected, atol=1e-6)


def test_drafts_are_drawn_from_what_is_told() -> None:
    logits = np.random.default_rng(5).standard_normal((1, VOCABULARY)).astype(np.float32)
    candidates, generator = candidates_of(logits, 4), np.random.default_rng(1)
    counts: Counter[int] = Counter()
    for _ in range(4000):
        found = propose_candidates(candidates, 0, VOCABULARY, 0.7, generator)
        counts[found.token_ids[0]] += 1
    assert found.probabilities_KV is not None
    told = found.probabilities_KV[0]
    assert np.flatnonzero(told).tolist() == sorted(counts)
    frequencies = np.array([counts[token] for token in range(VOCABULARY)]) / 4000
    # Four standard deviations of a share that is at most a half.
    np.testing.assert_allclose(frequencies, told, atol=4 * 0.5 / np.sqrt(4000))


def test_a_candidate_that_fell_to_zero_is_never_drawn() -> None:
    candidates = DraftCandidates(
        token_ids=np.array([[[2, 3]]], np.int32), probabilities=np.array([[[1.0, 0.0]]], np.float32)
    )
    found = propose_candidates(candidates, 0, VOCABULARY, 100.0, np.random.default_rng(0))
    assert found.token_ids == (2,)
    assert found.probabilities_KV is not None
    assert found.probabilities_KV[0, 3] == 0.0
