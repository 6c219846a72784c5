"""How likely an answer's tokens were, with and without drafts, against a walk over the target's own table."""

from __future__ import annotations

import numpy as np
import pytest

from peagle_trt.decode.log_probs import log_probs_of
from peagle_trt.decode.loop import DecodeLoop
from peagle_trt.decode.request import GenerationChunk, GenerationRequest, SamplingSettings
from peagle_trt.errors import RequestError
from tests.support.markov_engine import VOCABULARY, MarkovEngine, SequentialMarkovEngine

ENGINES = [MarkovEngine, SequentialMarkovEngine]


def answer(engine: MarkovEngine, *, drafts: int, num_top: int | None, **sampling: object) -> list[GenerationChunk]:
    loop = DecodeLoop(engine, None)
    loop.submit(
        GenerationRequest(
            request_id="a",
            prompt_ids=(1, 2),
            max_tokens=24,
            sampling=SamplingSettings(**sampling),  # type: ignore[arg-type]
            draft_tokens=drafts,
            num_top_log_probs=num_top,
        )
    )
    chunks = []
    while loop.has_work:
        chunks += loop.step()
    return chunks


def expected(engine: MarkovEngine, tokens: list[int]) -> list[np.ndarray]:
    """Log-softmax in every place, in double precision."""
    history, found = [1, 2], []
    for token in tokens:
        logits = engine.next_logits(history).astype(np.float64)
        found.append(logits - np.log(np.exp(logits).sum()))
        history.append(token)
    return found


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("drafts", [0, 1, 4])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.3, "seed": 3, "top_k": 3, "frequency_penalty": 0.5}])
def test_they_are_those_of_the_target_before_any_setting(
    kind: type[MarkovEngine], drafts: int, sampling: dict[str, float]
) -> None:
    engine = kind(agreement=0.9)
    chunks = answer(engine, drafts=drafts, num_top=0, **sampling)
    tokens = [token for chunk in chunks for token in chunk.token_ids]
    given = [entry.log_prob for chunk in chunks for entry in chunk.log_probs]
    assert all(len(chunk.log_probs) == len(chunk.token_ids) for chunk in chunks)
    wanted = [row[token] for row, token in zip(expected(engine, tokens), tokens, strict=True)]
    np.testing.assert_allclose(given, wanted, atol=1e-12)


@pytest.mark.parametrize("num_top", [1, 3, VOCABULARY, 20])
def test_the_likeliest_tokens_come_best_first(num_top: int) -> None:
    engine = MarkovEngine(agreement=0.9)
    chunks = answer(engine, drafts=3, num_top=num_top)
    tokens = [token for chunk in chunks for token in chunk.token_ids]
    given = [entry.top for chunk in chunks for entry in chunk.log_probs]
    for row, top in zip(expected(engine, tokens), given, strict=True):
        assert [token for token, _ in top] == np.argsort(-row)[:num_top].tolist()
        np.testing.assert_allclose([value for _, value in top], np.sort(row)[::-1][:num_top], atol=1e-12)


def test_of_equal_tokens_the_lowest_ids_are_taken() -> None:
    (found,) = log_probs_of(np.array([[0.0, 1.0, 1.0, 1.0]], np.float32), [0], num_top=2)
    assert [token for token, _ in found.top] == [1, 2]


def test_huge_logits_do_not_overflow() -> None:
    (found,) = log_probs_of(np.array([[3e38, -3e38]], np.float32), [0], num_top=0)
    assert found.log_prob == 0.0


def test_without_the_wish_there_are_none() -> None:
    assert all(chunk.log_probs == () for chunk in answer(MarkovEngine(), drafts=3, num_top=None))


@pytest.mark.parametrize("num_top", [-1, 21])
def test_a_count_out_of_range_is_refused(num_top: int) -> None:
    with pytest.raises(RequestError, match="`num_top_log_probs`"):
        answer(MarkovEngine(), drafts=0, num_top=num_top)
