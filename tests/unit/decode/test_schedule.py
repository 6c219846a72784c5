"""What the loop decides at every step: K, and how much of a prompt is read beside running answers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle_trt.decode.loop import DecodeLoop
from peagle_trt.decode.prompt_shares import share_prompt_rows
from peagle_trt.decode.request import GenerationChunk, GenerationRequest, RequestMetrics, SamplingSettings
from peagle_trt.decode.sequence import YOUNG_TOKENS
from peagle_trt.errors import OverloadError, RequestError
from tests.support.markov_engine import VOCABULARY, MarkovEngine
from tests.support.timed_engine import TimedEngine

# Hot enough that a draft is right once in seven times.
UNLIKELY = SamplingSettings(temperature=100.0, seed=1)

prompts = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=300).map(tuple)
arrivals = st.lists(
    st.tuples(
        st.integers(0, 30),
        prompts,
        st.integers(1, 40),
        st.sampled_from([0, 1, 3, 16, None, "auto"]),
        st.sampled_from([None, None, 5]),
    ),
    min_size=1,
    max_size=8,
)


def greedy_answer(engine: MarkovEngine, prompt: Sequence[int], length: int) -> list[int]:
    history = list(prompt)
    for _ in range(length):
        history.append(int(engine.next_logits(history).argmax()))
    return history[len(history) - length :]


def request(request_id: str, **fields: object) -> GenerationRequest:
    return GenerationRequest(**({"request_id": request_id, "prompt_ids": (1, 2), "max_tokens": 20} | fields))  # type: ignore[arg-type]


def run(loop: DecodeLoop) -> dict[str, list[GenerationChunk]]:
    chunks: dict[str, list[GenerationChunk]] = {}
    while loop.has_work:
        for chunk in loop.step():
            chunks.setdefault(chunk.request_id, []).append(chunk)
    return chunks


def metrics_of(engine: TimedEngine, *, count: int, length: int) -> list[RequestMetrics]:
    loop = DecodeLoop(engine, None, clock=engine.clock)
    for index in range(count):
        loop.submit(request(str(index), prompt_ids=(index % VOCABULARY, 2), max_tokens=length, draft_tokens="auto"))
    found = [chunks[-1].metrics for chunks in run(loop).values()]
    return [metrics for metrics in found if metrics is not None]


@settings(max_examples=60, deadline=None)
@given(
    arrivals,
    st.sampled_from([0.0, 0.7, 1.0]),
    st.sampled_from([0.0, 0.05, 1.0]),
    st.sampled_from([0.01, 3.0]),
)
def test_greedy_answers_are_the_targets_whatever_the_schedule(
    requests: list[tuple[int, tuple[int, ...], int, object, int | None]],
    agreement: float,
    row_seconds: float,
    drafter_seconds: float,
) -> None:
    engine = TimedEngine(agreement=agreement, max_batch_size=3, max_sequence_length=400)
    engine.row_seconds, engine.drafter_seconds = row_seconds, drafter_seconds
    loop = DecodeLoop(engine, None, clock=engine.clock)
    waiting = sorted(enumerate(requests), key=lambda item: item[1][0])
    answers: dict[str, list[int]] = {str(index): [] for index in range(len(requests))}
    ends: dict[str, str] = {}
    steps = 0
    while waiting or loop.has_work:
        while waiting and waiting[0][1][0] <= steps:
            index, (_, prompt, length, draft_tokens, _) = waiting.pop(0)
            loop.submit(request(str(index), prompt_ids=prompt, max_tokens=length, draft_tokens=draft_tokens))
        for index, (arrival, *_, leaves_after) in enumerate(requests):
            if leaves_after is not None and steps == arrival + leaves_after:
                loop.cancel(str(index))
        for chunk in loop.step():
            answers[chunk.request_id] += chunk.token_ids
            if chunk.finish_reason is not None:
                ends[chunk.request_id] = chunk.finish_reason
        steps += 1
    for index, (_, prompt, length, *_) in enumerate(requests):
        expected = greedy_answer(engine, prompt, length)
        answer = answers[str(index)]
        assert answer == (expected if ends[str(index)] == "length" else expected[: len(answer)])


def test_drafts_are_made_where_they_are_cheap() -> None:
    engine = TimedEngine(agreement=1.0, max_sequence_length=2000)
    engine.drafter_seconds = 0.01
    (metrics,) = metrics_of(engine, count=1, length=600)
    # Three plain steps at first, and one for each probe.
    assert metrics.num_output_tokens / metrics.num_verify_steps > 1.2
    assert metrics.num_drafter_passes > 0.9 * metrics.num_verify_steps


def test_drafts_that_cost_more_than_they_gain_are_not_made() -> None:
    engine = TimedEngine(agreement=0.0, max_sequence_length=2000)
    engine.pass_seconds, engine.row_seconds, engine.drafter_seconds = 0.1, 1.0, 1.0
    (metrics,) = metrics_of(engine, count=1, length=600)
    assert metrics.num_verify_steps <= 3 + 600 // 128


@pytest.mark.parametrize(
    ("agreement", "pass_seconds", "row_seconds"), [(1.0, 1.0, 0.0), (1.0, 0.1, 1.0), (0.0, 1.0, 0.1), (0.7, 1.0, 0.2)]
)
@pytest.mark.parametrize("count", [1, 8])
def test_auto_costs_little_more_than_the_better_of_plain_and_fixed(
    agreement: float, pass_seconds: float, row_seconds: float, count: int
) -> None:
    seconds = {}
    for draft_tokens in (0, None, "auto"):
        engine = TimedEngine(agreement=agreement, max_sequence_length=2000, max_batch_size=8)
        engine.pass_seconds, engine.row_seconds = pass_seconds, row_seconds
        loop = DecodeLoop(engine, None, clock=engine.clock)
        for index in range(count):
            loop.submit(request(str(index), prompt_ids=(index % 7, 2), max_tokens=400, draft_tokens=draft_tokens))
        run(loop)
        seconds[draft_tokens] = engine.now
    # The worst case is 3.7 times slower with drafts; the first steps and every probe find that out.
    assert seconds["auto"] <= 1.04 * min(seconds[0], seconds[None])


@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_requests_that_come_together_read_their_prompts_before_they_answer_at_length(draft_tokens: int) -> None:
    engine = TimedEngine(max_batch_size=8, max_sequence_length=400)
    engine.pass_seconds, engine.row_seconds, engine.drafter_seconds = 20.0, 1.0, 0.0
    loop = DecodeLoop(engine, None, clock=engine.clock)
    for wave in range(2):
        # The second time the loop knows what passes cost.
        started_at, answered = engine.now, set[str]()
        for index in range(8):
            loop.submit(request(f"{wave}-{index}", prompt_ids=(3,) * 120, max_tokens=64, draft_tokens=draft_tokens))
        while len(answered) < 8:
            answered |= {chunk.request_id for chunk in loop.step() if chunk.token_ids}
        # 960 rows in four steps, and few verify rows beside them.
        assert engine.now - started_at < 4 * 20.0 + 960 * 1.0 + 150.0
        run(loop)


def test_an_answer_that_runs_is_not_held_up_by_an_older_prompt_for_long() -> None:
    engine = TimedEngine(max_batch_size=2, max_sequence_length=9000)
    engine.pass_seconds, engine.row_seconds, engine.drafter_seconds = 20.0, 1.0, 0.0
    loop = DecodeLoop(engine, None, clock=engine.clock)
    loop.submit(request("long", prompt_ids=(3,) * 7000, max_tokens=2, draft_tokens=0))
    loop.submit(request("short", max_tokens=120, draft_tokens=0))
    times = []
    while loop.has_work:
        chunks = loop.step()
        times += [engine.now for chunk in chunks if chunk.request_id == "short" and chunk.token_ids]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert sum(gap > 2 * 22.0 for gap in gaps) <= YOUNG_TOKENS


def test_one_request_whose_drafts_are_refused_stops_drafting_alone() -> None:
    engine = TimedEngine(agreement=1.0, max_sequence_length=2000)
    engine.row_seconds, engine.drafter_seconds = 0.1, 0.0
    loop = DecodeLoop(engine, None, clock=engine.clock)
    loop.submit(request("good", max_tokens=300, draft_tokens="auto"))
    loop.submit(request("bad", max_tokens=300, draft_tokens="auto", sampling=UNLIKELY))
    metrics = {name: chunks[-1].metrics for name, chunks in run(loop).items()}
    good, bad = metrics["good"], metrics["bad"]
    assert good is not None and bad is not None
    assert good.num_draft_tokens > 200
    assert bad.num_draft_tokens < 0.6 * good.num_draft_tokens


def test_a_long_prompt_does_not_hold_up_running_answers() -> None:
    engine = TimedEngine(max_sequence_length=8000, max_batch_size=4)
    engine.pass_seconds, engine.row_seconds = 1.0, 0.1
    loop = DecodeLoop(engine, None, clock=engine.clock)
    for name in ("a", "b", "c"):
        loop.submit(request(name, max_tokens=800, draft_tokens=3))
    alone = [_timed_step(loop, engine) for _ in range(50)]
    loop.submit(request("long", prompt_ids=(3,) * 7000, max_tokens=4))
    beside = [_timed_step(loop, engine) for _ in range(100)]
    usual = sum(alone[10:]) / 40
    # The first steps beside it find out what rows cost.
    assert max(beside[5:]) <= 2.0 * usual
    assert sum(beside) / 100 >= 1.2 * usual


def test_a_long_prompt_alone_is_read_in_large_chunks() -> None:
    loop = DecodeLoop(MarkovEngine(max_sequence_length=8000), None)
    loop.submit(request("long", prompt_ids=(3,) * 7000, max_tokens=1))
    run(loop)
    assert loop.statistics.num_steps == -(-7000 // 256)


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    loop = DecodeLoop(MarkovEngine(max_sequence_length=8000), None)
    loop.submit(request("long", prompt_ids=(3,) * 7000, max_tokens=1))
    loop.step()
    loop.submit(request("short", prompt_ids=(3,) * 100, max_tokens=1))
    assert [chunk.request_id for chunk in loop.step()] == ["short"]


@pytest.mark.parametrize(
    ("num_left", "budget", "shares"),
    [
        ([], 10, []),
        ([5], 10, [5]),
        ([50], 10, [10]),
        ([50, 50], 10, [5, 5]),
        ([50, 2, 50], 10, [5, 2, 3]),
        ([50, 50, 2], 10, [5, 3, 2]),
        ([3, 1], 10, [3, 1]),
        ([50, 1], 10, [9, 1]),
        ([50, 50], 1, [1, 0]),
        ([50, 50], 0, [0, 0]),
    ],
)
def test_the_first_prompt_has_half_and_short_ones_come_next(
    num_left: list[int], budget: int, shares: list[int]
) -> None:
    assert share_prompt_rows(num_left, budget) == shares


def test_the_most_important_request_gets_the_next_slot() -> None:
    loop = DecodeLoop(MarkovEngine(max_batch_size=1), None)
    for name, priority in (("a", 0), ("b", 0), ("c", 2), ("d", 1)):
        loop.submit(request(name, priority=priority))
    ends = [chunk.request_id for chunk in steps(loop) if chunk.finish_reason is not None]
    assert ends == ["c", "d", "a", "b"]


def test_the_most_important_prompt_is_read_first() -> None:
    loop = DecodeLoop(MarkovEngine(max_sequence_length=8000), None)
    loop.submit(request("a", prompt_ids=(3,) * 3000, max_tokens=1))
    loop.submit(request("b", prompt_ids=(3,) * 3001, max_tokens=1, priority=1))
    assert [chunk.request_id for chunk in steps(loop)] == ["b", "a"]


def test_a_full_line_refuses_and_takes_again_when_it_moves() -> None:
    loop = DecodeLoop(MarkovEngine(max_batch_size=1), None, max_waiting=2)
    loop.submit(request("a"))
    loop.step()
    loop.submit(request("b"))
    loop.submit(request("c"))
    with pytest.raises(OverloadError, match="2 requests are waiting already"):
        loop.submit(request("d"))
    while not any(chunk.finish_reason for chunk in loop.step()):
        pass
    loop.step()
    # A refused request leaves nothing behind, its id included.
    loop.submit(request("d"))
    assert set(run(loop)) == {"b", "c", "d"}


def test_an_answer_ends_as_it_is_when_its_time_is_up() -> None:
    engine = TimedEngine(agreement=0.0)
    loop = DecodeLoop(engine, None, clock=engine.clock)
    loop.submit(request("a", max_tokens=30, deadline_seconds=5.0, draft_tokens=0))
    loop.submit(request("b", max_tokens=30, draft_tokens=0))
    chunks = run(loop)
    answer = [token for chunk in chunks["a"] for token in chunk.token_ids]
    assert chunks["a"][-1].finish_reason == "deadline"
    assert answer == greedy_answer(engine, (1, 2), 5)
    assert chunks["b"][-1].finish_reason == "length"


def test_a_request_whose_time_is_up_before_its_turn_never_starts() -> None:
    engine = TimedEngine(max_batch_size=1)
    loop = DecodeLoop(engine, None, clock=engine.clock)
    loop.submit(request("a", max_tokens=30, draft_tokens=0))
    loop.submit(request("b", deadline_seconds=3.0))
    chunks = run(loop)
    assert [(chunk.finish_reason, chunk.metrics) for chunk in chunks["b"]] == [("deadline", None)]
    assert chunks["a"][-1].finish_reason == "length"


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_deadline_that_is_no_time_is_refused(seconds: float) -> None:
    with pytest.raises(RequestError, match="`deadline_seconds`"):
        DecodeLoop(MarkovEngine(), None).submit(request("a", deadline_seconds=seconds))


def steps(loop: DecodeLoop) -> Iterator[GenerationChunk]:
    while loop.has_work:
        yield from loop.step()


def _timed_step(loop: DecodeLoop, engine: TimedEngine) -> float:
    started = engine.now
    loop.step()
    return engine.now - started
