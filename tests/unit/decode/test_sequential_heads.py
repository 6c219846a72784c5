"""The loop over a plain EAGLE-3 head: as many passes as drafts, the same answers, the target's own distribution."""

from __future__ import annotations

import numpy as np
import pytest

from peagle_trt.decode.loop import DecodeLoop
from peagle_trt.decode.request import GenerationChunk, GenerationRequest, SamplingSettings
from peagle_trt.decode.sampling import distribution
from tests.support.markov_engine import SequentialMarkovEngine
from tests.unit.decode.test_loop import greedy_answer, request, run, tokens
from tests.unit.decode.test_sampling_is_exact import (
    SETTINGS,
    chi_square_is_plausible,
    exact_probabilities,
    sample,
)


@pytest.mark.parametrize("draft_tokens", [0, 1, 2, 5, 16])
@pytest.mark.parametrize("max_tokens", [1, 2, 20])
@pytest.mark.parametrize("agreement", [0.0, 0.9, 1.0])
def test_greedy_is_what_the_target_alone_gives(draft_tokens: int, max_tokens: int, agreement: float) -> None:
    engine = SequentialMarkovEngine(agreement=agreement)
    loop = DecodeLoop(engine, None)
    loop.submit(request(max_tokens=max_tokens, draft_tokens=draft_tokens))
    (chunks,) = run(loop).values()
    assert tokens(chunks) == greedy_answer(engine, (1, 2), max_tokens)


def test_a_drafter_that_agrees_has_every_draft_accepted() -> None:
    # Its table is the target's: every pass must see the two tokens before it, drafted ones included.
    metrics = answer(SequentialMarkovEngine(agreement=1.0), max_tokens=31, draft_tokens=5)[-1].metrics
    assert metrics is not None
    assert (metrics.num_verify_steps, metrics.accepted_by_position) == (5, (5,) * 5)


def test_every_draft_costs_a_pass() -> None:
    engine = SequentialMarkovEngine(agreement=1.0)
    metrics = answer(engine, max_tokens=31, draft_tokens=5)[-1].metrics
    assert metrics is not None
    assert metrics.num_drafter_passes == engine.num_passes == metrics.num_draft_tokens


def test_requests_with_different_k_share_passes() -> None:
    engine = SequentialMarkovEngine(agreement=0.9)
    loop = DecodeLoop(engine, None)
    for name, count in (("a", 1), ("b", 4), ("c", 0), ("d", 3), ("e", 2)):
        loop.submit(request(name, draft_tokens=count, prompt_ids=(3, 4)))
    expected = greedy_answer(engine, (3, 4), 20)
    assert all(tokens(chunks) == expected for chunks in run(loop).values())


def test_a_long_prompt_is_read_in_chunks() -> None:
    engine = SequentialMarkovEngine(agreement=0.9, max_sequence_length=600)
    prompt = tuple(np.random.default_rng(2).integers(0, 6, 530).tolist())
    loop = DecodeLoop(engine, None)
    loop.submit(request(prompt_ids=prompt, draft_tokens=3))
    (chunks,) = run(loop).values()
    assert tokens(chunks) == greedy_answer(engine, prompt, 20)


@pytest.mark.parametrize("samples_drafts", [False, True], ids=["argmax-drafts", "drawn-drafts"])
@pytest.mark.parametrize("name", ["temperature", "top-k-and-top-p"])
def test_answers_follow_the_targets_distribution(name: str, samples_drafts: bool) -> None:
    engine = SequentialMarkovEngine(agreement=0.6, max_batch_size=8)
    counts = sample(engine, SETTINGS[name], samples_drafts=samples_drafts, draft_tokens=2)
    assert chi_square_is_plausible(counts, exact_probabilities(engine, SETTINGS[name]))


def test_a_drawn_draft_is_what_the_next_pass_reads() -> None:
    # With the target's own table each drawn draft stays, so all slots are accepted if every pass follows its draft.
    engine = SequentialMarkovEngine(agreement=1.0)
    settings = SamplingSettings(temperature=1.0, seed=5)
    metrics = answer(engine, max_tokens=31, draft_tokens=5, sampling=settings, samples_drafts=True)[-1].metrics
    assert metrics is not None
    assert metrics.accepted_by_position == (metrics.num_verify_steps,) * 5
    assert distribution(engine.pair_logits[1, 2], settings).max() < 0.99


def answer(engine: SequentialMarkovEngine, **settings: object) -> list[GenerationChunk]:
    loop = DecodeLoop(engine, None)
    loop.submit(GenerationRequest(**({"request_id": "a", "prompt_ids": (1, 2)} | settings)))  # type: ignore[arg-type]
    (chunks,) = run(loop).values()
    return chunks
