"""Tokens that a request bars or favours, with and without drafts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle_trt.decode.loop import DecodeLoop
from peagle_trt.decode.request import GenerationRequest, SamplingSettings
from peagle_trt.errors import RequestError
from tests.support.markov_engine import VOCABULARY, MarkovEngine

words = st.lists(st.lists(st.integers(0, VOCABULARY - 2), min_size=1, max_size=3).map(tuple), max_size=4).map(tuple)
biases = st.lists(st.tuples(st.integers(0, VOCABULARY - 1), st.floats(-5, 5, width=32)), max_size=3).map(tuple)


def answer(engine: MarkovEngine, sampling: SamplingSettings, draft_tokens: int) -> list[int]:
    loop = DecodeLoop(engine, None)
    loop.submit(
        GenerationRequest(
            request_id="a", prompt_ids=(1, 2), max_tokens=24, sampling=sampling, draft_tokens=draft_tokens
        )
    )
    found: list[int] = []
    while loop.has_work:
        for chunk in loop.step():
            assert chunk.finish_reason != "error", chunk.error
            found += chunk.token_ids
    return found


def holds(tokens: list[int], word: tuple[int, ...]) -> bool:
    return any(tuple(tokens[start : start + len(word)]) == word for start in range(len(tokens) - len(word) + 1))


@settings(max_examples=60, deadline=None)
@given(words, st.sampled_from([0.0, 1.0]), st.sampled_from([0, 3]))
def test_a_bad_word_never_comes_out(bad_words: tuple[tuple[int, ...], ...], temperature: float, drafts: int) -> None:
    sampling = SamplingSettings(bad_words=bad_words, temperature=temperature, seed=1)
    tokens = answer(MarkovEngine(agreement=1.0), sampling, drafts)
    assert len(tokens) == 24
    assert not any(holds(tokens, word) for word in bad_words)


@settings(max_examples=60, deadline=None)
@given(words, biases)
def test_drafts_do_not_change_an_answer_with_bars_and_biases(
    bad_words: tuple[tuple[int, ...], ...], logit_bias: tuple[tuple[int, float], ...]
) -> None:
    sampling = SamplingSettings(bad_words=bad_words, logit_bias=logit_bias)
    plain, fast = (answer(MarkovEngine(agreement=1.0), sampling, drafts) for drafts in (0, 5))
    assert plain == fast


def test_the_answer_is_what_a_walk_over_biased_logits_gives() -> None:
    engine = MarkovEngine()
    history = [1, 2]
    for _ in range(24):
        logits = engine.next_logits(history).copy()
        logits[3] += 1.5
        if history[-2:] == [3, 3] and len(history) > 3:
            logits[3] = -100.0
        history.append(int(logits.argmax()))
    sampling = SamplingSettings(logit_bias=((3, 1.0), (3, 0.5)), bad_words=((3, 3, 3),))
    assert answer(engine, sampling, 3) == history[2:]


def test_a_word_that_the_prompt_began_may_end_in_the_answer() -> None:
    free = answer(MarkovEngine(), SamplingSettings(), 0)
    assert answer(MarkovEngine(), SamplingSettings(bad_words=((2, free[0]),)), 0)[0] == free[0]


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (SamplingSettings(bad_words=((),)), "a word of no tokens"),
        (SamplingSettings(bad_words=((VOCABULARY,),)), "`bad_words` holds a token id outside"),
        (SamplingSettings(bad_words=tuple((token,) for token in range(VOCABULARY))), "may bar every token"),
        (SamplingSettings(logit_bias=((-1, 1.0),)), "`logit_bias` holds a token id outside"),
        (SamplingSettings(logit_bias=((1, float("nan")),)), "`logit_bias` of token 1 is nan"),
    ],
)
def test_bars_and_biases_without_a_meaning_are_refused(sampling: SamplingSettings, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        answer(MarkovEngine(), sampling, 0)
