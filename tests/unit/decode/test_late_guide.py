"""A grammar that holds from a mark in the answer on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle_trt.decode.late_guide import LateGuide, LateWalk
from peagle_trt.decode.loop import DecodeLoop
from peagle_trt.decode.request import GenerationRequest, SamplingSettings
from tests.support.markov_engine import VOCABULARY, MarkovEngine, SequentialMarkovEngine
from tests.support.table_guide import TableGuide

END = 6
# (0|1) 2 ((3|4) 2)* 5
INNER = TableGuide({0: {0: 1, 1: 1}, 1: {2: 2}, 2: {3: 1, 4: 1, 5: 3}, 3: {}}, {3}, vocab_size=VOCABULARY)
MARKS = [(4,), (3, 4), (2, 3, 4)]
SEEDS = (0, 1, 2, 11, 30)
"""Of engines some of whose greedy answers reach each mark."""


def walked(engine: MarkovEngine, mark: tuple[int, ...], length: int) -> list[int]:
    """The target's likeliest tokens, by a walk that is written down anew: free, led to the mark's end, then guided."""
    answer, state = list[int](), -1
    while len(answer) < length and state != 3:
        allowed = list(range(VOCABULARY))
        if state >= 0:
            allowed = list(INNER.table[state])
        elif len(mark) > 1 and tuple(answer[1 - len(mark) :]) == mark[:-1]:
            allowed = [mark[-1]]
        token = max(allowed, key=lambda token: engine.next_logits([1, 2, *answer])[token])
        if token == END and state < 0:
            break
        answer.append(token)
        if state >= 0:
            state = INNER.table[state][token]
        elif tuple(answer[-len(mark) :]) == mark:
            state = 0
    return answer


def follows(answer: list[int], mark: tuple[int, ...]) -> bool:
    places = [i for i in range(len(answer)) if tuple(answer[i : i + len(mark)]) == mark]
    return not places or INNER.follows(answer[places[0] + len(mark) :])


@pytest.mark.parametrize("kind", [MarkovEngine, SequentialMarkovEngine])
@pytest.mark.parametrize("drafts", [0, 1, 3, 6])
@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_an_answer_is_free_before_the_mark_and_guided_after_it(
    kind: type[MarkovEngine], drafts: int, mark: tuple[int, ...], temperature: float
) -> None:
    num_marked = 0
    for seed in SEEDS:
        engine = kind(seed=seed, agreement=0.9)
        loop = DecodeLoop(engine, None)
        request = GenerationRequest(
            request_id="a",
            prompt_ids=(1, 2),
            max_tokens=40,
            end_ids=(END,),
            draft_tokens=drafts,
            sampling=SamplingSettings(temperature=temperature, seed=seed),
            guide=LateGuide(INNER, mark, VOCABULARY),
        )
        loop.submit(request)
        answer: list[int] = []
        while loop.has_work:
            for chunk in loop.step():
                assert chunk.finish_reason != "error", chunk.error
                answer += chunk.token_ids
        if temperature == 0.0:
            assert answer == walked(engine, mark, 40)
        assert follows(answer, mark)
        num_marked += any(tuple(answer[i : i + len(mark)]) == mark for i in range(len(answer)))
    # A test in which no answer reaches its mark would say nothing; a drawn one reaches a long mark by luck alone.
    assert num_marked or (temperature > 0.0 and len(mark) > 1)


def state_of(walk: LateWalk) -> tuple[list[bool], bool, bool]:
    return walk.allowed().tolist(), walk.may_end, walk.is_complete


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(MARKS), st.lists(st.tuples(st.integers(0, 99), st.integers(0, 6)), max_size=30))
def test_tokens_taken_back_leave_no_trace(mark: tuple[int, ...], moves: list[tuple[int, int]]) -> None:
    guide = LateGuide(INNER, mark, VOCABULARY)
    walk, states = guide.start(), list[tuple[list[bool], bool, bool]]()
    for choice, back in moves:
        states.append(state_of(walk))
        allowed = np.flatnonzero(walk.allowed())
        if not len(allowed):
            break
        walk.take(int(allowed[choice % len(allowed)]))
        if back:
            count = min(back, len(states))
            walk.undo(count)
            assert state_of(walk) == states[-count]
            del states[-count:]


def test_only_the_last_token_of_a_mark_may_follow_the_others() -> None:
    walk = LateGuide(INNER, (2, 3, 4), VOCABULARY).start()
    assert walk.allowed().all()
    assert walk.may_end
    for token in (5, 2, 3):
        walk.take(token)
    assert np.flatnonzero(walk.allowed()).tolist() == [4]
    assert not walk.may_end
    walk.take(4)
    assert np.flatnonzero(walk.allowed()).tolist() == [0, 1]
