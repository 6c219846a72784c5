"""Sampled speculative decoding draws from the target's own distribution: chi-square against exact probabilities."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from peagle_trt.decode.loop import DecodeLoop
from peagle_trt.decode.request import DraftTokens, GenerationRequest, SamplingSettings
from peagle_trt.decode.sampling import distribution
from peagle_trt.decode.speculation import SpeculationController
from tests.support.markov_engine import VOCABULARY, MarkovEngine

NUM_SAMPLES = 12_000
LENGTH = 3
SETTINGS = {
    "temperature": SamplingSettings(temperature=0.8),
    "top-k": SamplingSettings(temperature=1.0, top_k=4),
    "top-p": SamplingSettings(temperature=1.3, top_p=0.85),
    "top-k-and-top-p": SamplingSettings(temperature=1.1, top_k=5, top_p=0.9),
    "penalties": SamplingSettings(temperature=1.0, repetition_penalty=1.4, frequency_penalty=0.3, presence_penalty=0.2),
}


@pytest.mark.parametrize("samples_drafts", [False, True], ids=["argmax-drafts", "drawn-drafts"])
@pytest.mark.parametrize("name", SETTINGS)
def test_answers_follow_the_targets_distribution(name: str, samples_drafts: bool) -> None:
    engine = MarkovEngine(agreement=0.8, max_batch_size=8)
    settings = SETTINGS[name]
    counts = sample(engine, settings, samples_drafts=samples_drafts, draft_tokens=3)
    assert chi_square_is_plausible(counts, exact_probabilities(engine, settings))


@pytest.mark.parametrize("samples_drafts", [False, True], ids=["argmax-drafts", "drawn-drafts"])
def test_cutting_drafts_by_confidence_leaves_the_distribution(
    samples_drafts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified: list[int] = []

    def cut(_: object, chances: list[np.ndarray], **__: int) -> list[int]:
        counts = [int((np.append(each, 0.0) < 0.26).argmax()) for each in chances]
        verified.extend(counts)
        return counts

    # Whatever passes cost here: three drafts are made, and the unlikely ones cut.
    monkeypatch.setattr(
        SpeculationController, "choose", lambda _, wishes, **__: [min(3, wish.max_drafts) for wish in wishes]
    )
    monkeypatch.setattr(SpeculationController, "cut", cut)
    engine = MarkovEngine(agreement=0.8, max_batch_size=8)
    settings = SamplingSettings(temperature=0.8)
    counts = sample(engine, settings, samples_drafts=samples_drafts, draft_tokens="auto")
    assert set(verified) == {0, 1}
    assert chi_square_is_plausible(counts, exact_probabilities(engine, settings))


@pytest.mark.parametrize("in_flight", [1, 8])
def test_a_seed_gives_one_answer_however_many_drafts_there_are(in_flight: int) -> None:
    answers: dict[DraftTokens, list[tuple[int, ...]]] = {}
    counts: list[DraftTokens] = [0, 1, 2, 3, "auto"]
    for draft_tokens in counts:
        loop = DecodeLoop(MarkovEngine(agreement=0.8, max_batch_size=8, max_sequence_length=64), None)
        for seed in range(in_flight):
            loop.submit(
                GenerationRequest(
                    request_id=str(seed),
                    prompt_ids=(1, 2),
                    max_tokens=40,
                    draft_tokens=draft_tokens,
                    sampling=SamplingSettings(temperature=0.9, top_p=0.95, repetition_penalty=1.1, seed=seed),
                )
            )
        found: dict[str, tuple[int, ...]] = {}
        while loop.has_work:
            for chunk in loop.step():
                found[chunk.request_id] = found.get(chunk.request_id, ()) + tuple(chunk.token_ids)
        answers[draft_tokens] = [found[str(seed)] for seed in range(in_flight)]
    assert all(answers[each] == answers[0] for each in counts)


def test_a_wrong_acceptance_rule_would_be_caught() -> None:
    engine = MarkovEngine(agreement=0.8, max_batch_size=8)
    counts = sample(engine, SamplingSettings(temperature=0.8), samples_drafts=False, draft_tokens=3)
    skewed = exact_probabilities(engine, SamplingSettings(temperature=0.9))
    assert not chi_square_is_plausible(counts, skewed)


def test_drawn_drafts_are_accepted_as_often_as_the_distributions_overlap() -> None:
    # The acceptance probability of a drawn draft is sum_v min(p, q). Source: arXiv 2211.17192, section 3.
    engine = MarkovEngine(agreement=0.8, max_batch_size=8)
    settings = SamplingSettings(temperature=1.0)
    accepted = sum(metrics_of(engine, settings, seed).accepted_by_position[0] for seed in range(3000))
    overlap = 0.0
    first = distribution(engine.next_logits([2, 3]), settings)
    for token, probability in enumerate(first):
        target = distribution(engine.next_logits([3, token]), settings)
        draft = distribution(engine.draft_logits[0, token], settings)
        overlap += probability * np.minimum(target, draft).sum()
    assert accepted / 3000 == pytest.approx(overlap, abs=0.04)


def sample(
    engine: MarkovEngine, settings: SamplingSettings, *, samples_drafts: bool, draft_tokens: DraftTokens
) -> Counter[tuple[int, ...]]:
    loop = DecodeLoop(engine, None)
    for seed in range(NUM_SAMPLES):
        loop.submit(
            GenerationRequest(
                request_id=str(seed),
                prompt_ids=(2, 3),
                max_tokens=LENGTH,
                sampling=SamplingSettings(**{**as_dict(settings), "seed": seed}),
                draft_tokens=draft_tokens,
                samples_drafts=samples_drafts,
            )
        )
    answers: dict[str, tuple[int, ...]] = {}
    while loop.has_work:
        for chunk in loop.step():
            answers[chunk.request_id] = answers.get(chunk.request_id, ()) + chunk.token_ids
    return Counter(answers.values())


def metrics_of(engine: MarkovEngine, settings: SamplingSettings, seed: int):  # type: ignore[no-untyped-def]
    loop = DecodeLoop(engine, None)
    settings = SamplingSettings(**{**as_dict(settings), "seed": seed})
    loop.submit(
        GenerationRequest(
            request_id="0", prompt_ids=(2, 3), max_tokens=3, sampling=settings, draft_tokens=1, samples_drafts=True
        )
    )
    chunks = []
    # Two steps: the prompt, then the one verify step that is counted.
    for _ in range(2):
        chunks += loop.step()
    while loop.has_work:
        chunks += loop.step()
    return chunks[-1].metrics


def exact_probabilities(engine: MarkovEngine, settings: SamplingSettings) -> dict[tuple[int, ...], float]:
    """Probability of every answer, from the tables and an independent reading of the penalties."""
    probabilities = {}
    for answer in itertools.product(range(VOCABULARY), repeat=LENGTH):
        probability, history = 1.0, [2, 3]
        for token in answer:
            logits = penalised(engine.next_logits(history), history, history[2:], settings)
            probability *= distribution(logits, settings)[token]
            history.append(token)
        probabilities[answer] = probability
    return probabilities


def penalised(logits: np.ndarray, seen: list[int], output: list[int], settings: SamplingSettings) -> np.ndarray:
    shaped = logits.copy()
    for token in set(seen):
        scale = settings.repetition_penalty
        shaped[token] = shaped[token] / scale if shaped[token] > 0 else shaped[token] * scale
    for token, count in Counter(output).items():
        shaped[token] -= settings.frequency_penalty * count + settings.presence_penalty
    return shaped


def chi_square_is_plausible(counts: Counter[tuple[int, ...]], probabilities: dict[tuple[int, ...], float]) -> bool:
    """Pearson's test at a false-alarm rate of about one in a million; answers expected under 5 times are pooled."""
    total = sum(counts.values())
    if any(probabilities[answer] == 0.0 for answer in counts):
        return False
    large = {answer: p * total for answer, p in probabilities.items() if p * total >= 5}
    statistic = sum((counts[answer] - expected) ** 2 / expected for answer, expected in large.items())
    rest = total - sum(large.values())
    if rest >= 5:
        found = total - sum(counts[answer] for answer in large)
        statistic += (found - rest) ** 2 / rest
    freedom = len(large) - (0 if rest >= 5 else 1)
    # Wilson-Hilferty approximation of the chi-square quantile at 4.75 standard deviations (1e-6, one-sided).
    critical = freedom * (1 - 2 / (9 * freedom) + 4.75 * (2 / (9 * freedom)) ** 0.5) ** 3
    return statistic < critical


def as_dict(settings: SamplingSettings) -> dict[str, float]:
    return {name: getattr(settings, name) for name in SamplingSettings.__dataclass_fields__}
