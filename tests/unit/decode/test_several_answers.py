"""Several answers to one prompt: read once, and each is what it would be alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle_trt.decode.loop import DecodeLoop
from peagle_trt.decode.request import GenerationRequest, SamplingSettings
from peagle_trt.decode.several import sequence_requests
from peagle_trt.tuning.stopwatch import TimedEngine
from tests.support.markov_engine import MarkovEngine, SequentialMarkovEngine
from tests.support.prefix_engine import PrefixEngine

PROMPT = tuple((index * index) % 6 for index in range(60))
LONG = PROMPT * 12
"""Longer than the rows of a step, and than what the drafter reads at once."""


def ask(prompt: tuple[int, ...], **fields: object) -> GenerationRequest:
    sampling = SamplingSettings(temperature=1.0, seed=5)
    defaults = {"request_id": "a", "prompt_ids": prompt, "max_tokens": 20, "sampling": sampling, "draft_tokens": 3}
    return GenerationRequest(**{**defaults, **fields})  # type: ignore[arg-type]


def run(loop: DecodeLoop, requests: Sequence[GenerationRequest], *, cancels: str = "") -> dict[str, list[int]]:
    """Tokens of every answer; one may be cancelled after the first step."""
    for request in requests:
        loop.submit(request)
    found: dict[str, list[int]] = {request.request_id: [] for request in requests}
    while loop.has_work:
        for chunk in loop.step():
            assert chunk.finish_reason != "error", chunk.error
            found[chunk.request_id] += chunk.token_ids
        if cancels:
            loop.cancel(cancels)
    return found


def alone(engine: MarkovEngine, requests: Sequence[GenerationRequest]) -> dict[str, list[int]]:
    """The same, each by itself in a loop of its own."""
    found: dict[str, list[int]] = {}
    for request in requests:
        found |= run(DecodeLoop(engine, None), [replace(request, prompt_group=None)])
    return found


def several(engine: MarkovEngine, **fields: object) -> list[GenerationRequest]:
    return sequence_requests(ask(PROMPT, **fields), engine.shapes.max_batch_size)


def test_a_prompt_is_read_once_for_all_its_answers() -> None:
    engine = MarkovEngine(max_sequence_length=400)
    loop = DecodeLoop(engine, None)
    run(loop, several(engine, max_tokens=1))
    # Every answer but the first reads the prompt's last token itself.
    assert engine.num_rows_read == len(PROMPT) + 3
    assert loop.statistics.num_reused_tokens == 3 * (len(PROMPT) - 1)


@pytest.mark.parametrize("draft_tokens", [0, 1, 3, "auto"])
@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_short_answers_read_it_once_too(max_tokens: int, draft_tokens: object) -> None:
    engine = MarkovEngine(max_sequence_length=400)
    loop = DecodeLoop(engine, None)
    requests = several(engine, max_tokens=max_tokens, draft_tokens=draft_tokens)
    # Of two tokens none is worth a draft once the first is there, so that the first answer's drafter reads nothing.
    assert run(loop, requests) == alone(engine, requests)
    assert loop.statistics.num_reused_tokens == 3 * (len(PROMPT) - 1)


def test_it_is_read_once_where_the_first_answer_ends_at_once() -> None:
    engine = MarkovEngine(max_sequence_length=400)
    loop = DecodeLoop(engine, None)
    run(loop, several(engine, end_ids=tuple(range(engine.target.vocab_size))))
    assert loop.statistics.num_reused_tokens == 3 * (len(PROMPT) - 1)


@pytest.mark.parametrize("prompt", [PROMPT[:1], PROMPT, LONG], ids=["one token", "one chunk", "several chunks"])
@pytest.mark.parametrize("draft_tokens", [0, 3, "auto"])
@pytest.mark.parametrize("samples_drafts", [False, True])
def test_every_answer_is_what_it_is_alone(prompt: tuple[int, ...], draft_tokens: object, samples_drafts: bool) -> None:
    engine = MarkovEngine(max_sequence_length=900)
    request = ask(prompt, draft_tokens=draft_tokens, samples_drafts=samples_drafts)
    if draft_tokens == "auto":
        # K follows the clock, and with drafts drawn so would the tokens.
        request = replace(request, sampling=SamplingSettings())
    requests = sequence_requests(request, 4)
    assert run(DecodeLoop(engine, None), requests) == alone(engine, requests)


def test_the_drafter_goes_on_from_the_same_rows() -> None:
    engine = PrefixEngine(max_sequence_length=900)
    requests = sequence_requests(ask(LONG, sampling=SamplingSettings()), 4)
    loop = DecodeLoop(engine, None)
    answers = run(loop, requests)
    num_passes = loop.statistics.num_target_passes
    other = DecodeLoop(engine, None)
    assert answers == run(other, [replace(request, prompt_group=None) for request in requests])
    # The drafts are a checksum of all that the drafter read: had it read anything else, others would be accepted. The
    # answers that wait begin one step after the first.
    assert num_passes <= other.statistics.num_target_passes + 1


@pytest.mark.parametrize("prompt", [PROMPT, LONG])
def test_a_head_that_drafts_in_turn_goes_on_too(prompt: tuple[int, ...]) -> None:
    engine = SequentialMarkovEngine(max_sequence_length=900)
    requests = sequence_requests(ask(prompt), 4)
    assert run(DecodeLoop(engine, None), requests) == alone(engine, requests)


def test_where_the_first_is_cancelled_the_next_one_reads() -> None:
    engine = MarkovEngine(max_sequence_length=900)
    requests = sequence_requests(ask(LONG), 4)
    found = run(DecodeLoop(engine, None), requests, cancels="a.0")
    expected = alone(engine, requests)
    assert found.pop("a.0") == []
    assert found == {name: tokens for name, tokens in expected.items() if name != "a.0"}


@pytest.mark.parametrize("prompt", [PROMPT, PROMPT[:9], PROMPT[:1]], ids=len)
@pytest.mark.parametrize("draft_tokens", [0, 1])
def test_answers_that_wait_for_a_slot_go_on_from_what_another_left(prompt: tuple[int, ...], draft_tokens: int) -> None:
    engine = MarkovEngine(max_sequence_length=400, max_batch_size=2)
    requests = sequence_requests(ask(prompt, draft_tokens=draft_tokens, max_tokens=4, sampling=SamplingSettings()), 5)
    expected = alone(engine, requests)
    engine.num_rows_read = 0
    loop = DecodeLoop(engine, None)
    assert run(loop, requests) == expected
    # The first token of each answer comes with the prompt, which is read once but for its last token.
    assert loop.statistics.num_reused_tokens == 4 * (len(prompt) - 1)


GROUPS = st.lists(
    st.tuples(st.integers(1, 300), st.integers(1, 5), st.integers(1, 12), st.integers(0, 8)), min_size=1, max_size=4
)


@settings(max_examples=40, deadline=None)
@given(GROUPS, st.dictionaries(st.integers(0, 20), st.integers(0, 19), max_size=4), st.integers(1, 4))
def test_groups_that_come_and_go_get_their_answers(
    groups: list[tuple[int, int, int, int]], cancels: dict[int, int], num_slots: int
) -> None:
    engine = PrefixEngine(max_sequence_length=400, max_batch_size=num_slots)
    requests, arrivals = list[GenerationRequest](), dict[int, list[GenerationRequest]]()
    for index, (length, count, max_tokens, step) in enumerate(groups):
        several = sequence_requests(ask(LONG[:length], request_id=str(index), max_tokens=max_tokens), count)
        requests += several
        arrivals.setdefault(step, []).extend(several)
    expected = alone(engine, requests)
    loop, found, gone = DecodeLoop(engine, None), dict[str, list[int]](), set[str]()
    for step in range(2000):
        for request in arrivals.pop(step, []):
            loop.submit(request)
        if step in cancels and cancels[step] < len(requests):
            gone.add(requests[cancels[step]].request_id)
            loop.cancel(requests[cancels[step]].request_id)
        for chunk in loop.step():
            assert chunk.finish_reason != "error", chunk.error
            found.setdefault(chunk.request_id, []).extend(chunk.token_ids)
        if not arrivals and not loop.has_work:
            break
    assert not loop.has_work
    for request in requests:
        answer, whole = found[request.request_id], expected[request.request_id]
        assert answer == (whole[: len(answer)] if request.request_id in gone else whole)


def test_a_prompt_of_others_is_not_waited_for() -> None:
    engine = MarkovEngine(max_sequence_length=900)
    requests = [*sequence_requests(ask(LONG), 2), ask(PROMPT, request_id="b")]
    assert run(DecodeLoop(engine, None), requests) == alone(engine, requests)


def test_an_engine_that_copies_nothing_reads_for_every_answer() -> None:
    engine = MarkovEngine(max_sequence_length=400)
    loop = DecodeLoop(TimedEngine(engine, time.perf_counter), None)
    requests = several(engine, max_tokens=1)
    run(loop, requests)
    assert engine.num_rows_read == 4 * len(PROMPT)
