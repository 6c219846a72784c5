"""The loop's bookkeeping on an engine whose answers are known."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from peagle_trt.decode.loop import DecodeLoop
from peagle_trt.decode.request import GenerationChunk, GenerationRequest, SamplingSettings
from peagle_trt.errors import RequestError
from tests.support.markov_engine import VOCABULARY, MarkovEngine


def greedy_answer(engine: MarkovEngine, prompt: Iterable[int], length: int) -> list[int]:
    history = list(prompt)
    for _ in range(length):
        history.append(int(engine.next_logits(history).argmax()))
    return history[len(history) - length :]


def run(loop: DecodeLoop) -> dict[str, list[GenerationChunk]]:
    chunks: dict[str, list[GenerationChunk]] = {}
    while loop.has_work:
        for chunk in loop.step():
            chunks.setdefault(chunk.request_id, []).append(chunk)
    return chunks


def request(request_id: str = "a", **settings: object) -> GenerationRequest:
    return GenerationRequest(**({"request_id": request_id, "prompt_ids": (1, 2), "max_tokens": 20} | settings))  # type: ignore[arg-type]


def tokens(chunks: list[GenerationChunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


@pytest.mark.parametrize("draft_tokens", [0, 1, 2, 3, 5, 16])
@pytest.mark.parametrize("max_tokens", [1, 2, 7, 20])
@pytest.mark.parametrize("agreement", [0.0, 0.9, 1.0])
def test_greedy_is_what_the_target_alone_gives(draft_tokens: int, max_tokens: int, agreement: float) -> None:
    engine = MarkovEngine(agreement=agreement)
    loop = DecodeLoop(engine, None)
    loop.submit(request(max_tokens=max_tokens, draft_tokens=draft_tokens))
    (chunks,) = run(loop).values()
    assert tokens(chunks) == greedy_answer(engine, (1, 2), max_tokens)
    assert chunks[-1].finish_reason == "length"
    assert chunks[-1].metrics is not None
    assert chunks[-1].metrics.num_output_tokens == max_tokens


def test_a_step_costs_one_target_pass_and_one_drafter_pass() -> None:
    loop = DecodeLoop(MarkovEngine(agreement=1.0), None)
    loop.submit(request(max_tokens=30, draft_tokens=5))
    run(loop)
    statistics = loop.statistics
    assert statistics.num_target_passes == statistics.num_steps
    # The last step drafts nothing: nothing follows it.
    assert statistics.num_steps - 2 <= statistics.num_drafter_passes <= statistics.num_steps


def test_acceptance_counts_add_up() -> None:
    loop = DecodeLoop(MarkovEngine(agreement=1.0), None)
    loop.submit(request(max_tokens=33, draft_tokens=4))
    (chunks,) = run(loop).values()
    metrics = chunks[-1].metrics
    assert metrics is not None
    assert metrics.num_accepted_tokens == sum(metrics.accepted_by_position)
    assert list(metrics.accepted_by_position) == sorted(metrics.accepted_by_position, reverse=True)
    # The prompt's pass gives one token, every later step one and its accepted drafts.
    steps_without_drafts = 33 - 1 - metrics.num_verify_steps - metrics.num_accepted_tokens
    assert 0 <= steps_without_drafts <= 1
    assert metrics.acceptance_length == 1 + metrics.num_accepted_tokens / metrics.num_verify_steps


def test_requests_join_and_leave_between_steps() -> None:
    engine = MarkovEngine(agreement=0.9, max_batch_size=3)
    loop = DecodeLoop(engine, None)
    prompts = {str(index): tuple((index + step) % VOCABULARY for step in range(1 + 3 * index)) for index in range(9)}
    for index, (name, prompt) in enumerate(prompts.items()):
        loop.submit(request(name, prompt_ids=prompt, max_tokens=4 + 5 * (index % 3), draft_tokens=index % 4))
    chunks = run(loop)
    for index, (name, prompt) in enumerate(prompts.items()):
        assert tokens(chunks[name]) == greedy_answer(engine, prompt, 4 + 5 * (index % 3))
    assert max(engine.batches) == 3


def test_an_end_token_inside_an_accepted_run_ends_the_answer() -> None:
    engine = MarkovEngine(agreement=1.0)
    full = greedy_answer(engine, (1, 2), 20)
    end = full[5]
    expected = full[: full.index(end)]
    loop = DecodeLoop(engine, None)
    loop.submit(request(end_ids=(end,), draft_tokens=8))
    (chunks,) = run(loop).values()
    assert tokens(chunks) == expected
    assert chunks[-1].finish_reason == "stop"


def test_min_tokens_bars_the_end_token() -> None:
    engine = MarkovEngine(agreement=1.0)
    end = greedy_answer(engine, (1, 2), 1)[0]
    loop = DecodeLoop(engine, None)
    loop.submit(request(end_ids=(end,), sampling=SamplingSettings(min_tokens=6), max_tokens=12))
    (chunks,) = run(loop).values()
    assert len(tokens(chunks)) >= 6
    assert end not in tokens(chunks)


@pytest.mark.parametrize("draft_tokens", [0, 3, 16])
def test_an_answer_ends_where_the_context_ends(draft_tokens: int) -> None:
    engine = MarkovEngine(agreement=1.0, max_sequence_length=24)
    loop = DecodeLoop(engine, None)
    loop.submit(request(prompt_ids=(3,) * 20, max_tokens=100, draft_tokens=draft_tokens))
    (chunks,) = run(loop).values()
    assert tokens(chunks) == greedy_answer(engine, (3,) * 20, 4)
    assert chunks[-1].finish_reason == "length"


def test_a_prompt_that_fills_the_context_but_one_gets_one_token() -> None:
    engine = MarkovEngine(max_sequence_length=24)
    loop = DecodeLoop(engine, None)
    loop.submit(request(prompt_ids=(3,) * 23))
    (chunks,) = run(loop).values()
    assert len(tokens(chunks)) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompt_ids": ()}, "the prompt is empty"),
        ({"prompt_ids": (1,) * 64}, "at most 63 fit"),
        ({"prompt_ids": (1, VOCABULARY)}, "outside 0..6"),
        ({"prompt_ids": (-1,)}, "outside 0..6"),
        ({"end_ids": (99,)}, "`end_ids`"),
        ({"max_tokens": 0}, "`max_tokens` is 0"),
        ({"draft_tokens": 17}, "expected 0..16"),
        ({"stop_strings": ("x",)}, "need a tokenizer"),
        ({"sampling": SamplingSettings(temperature=-1.0)}, "`temperature` is -1.0"),
        ({"sampling": SamplingSettings(temperature=float("nan"))}, "`temperature` is nan"),
        ({"sampling": SamplingSettings(top_p=0.0)}, "`top_p` is 0.0"),
        ({"sampling": SamplingSettings(repetition_penalty=0.0)}, "`repetition_penalty`"),
        ({"sampling": SamplingSettings(seed=-1)}, "`seed` is -1"),
    ],
)
def test_a_request_that_cannot_be_honoured_is_refused(settings: dict[str, object], message: str) -> None:
    loop = DecodeLoop(MarkovEngine(), None)
    with pytest.raises(RequestError, match=message):
        loop.submit(request(**settings))
    assert not loop.has_work


def test_a_request_id_in_flight_is_refused() -> None:
    loop = DecodeLoop(MarkovEngine(), None)
    loop.submit(request("a"))
    with pytest.raises(RequestError, match="already in flight"):
        loop.submit(request("a"))


def test_cancelling_frees_the_slot_and_leaves_others_alone() -> None:
    engine = MarkovEngine(max_batch_size=2)
    loop = DecodeLoop(engine, None)
    for name in ("a", "b", "c"):
        loop.submit(request(name, max_tokens=12))
    loop.step()
    loop.cancel("a")
    loop.cancel("nobody")
    chunks = run(loop)
    assert chunks["a"][-1].finish_reason == "cancelled"
    for name in ("b", "c"):
        assert tokens(chunks[name])[-3:] == greedy_answer(engine, (1, 2), 12)[-3:]


def test_a_waiting_request_can_be_cancelled() -> None:
    loop = DecodeLoop(MarkovEngine(max_batch_size=1), None)
    loop.submit(request("a"))
    loop.submit(request("b"))
    loop.step()
    loop.cancel("b")
    assert [chunk.finish_reason for chunk in run(loop)["b"]] == ["cancelled"]


def test_a_seed_gives_the_same_answer_whoever_shares_the_batch() -> None:
    sampling = SamplingSettings(temperature=1.0, seed=5)
    alone = DecodeLoop(MarkovEngine(), None)
    alone.submit(request("a", sampling=sampling))
    crowd = DecodeLoop(MarkovEngine(), None)
    for name in ("x", "a", "y"):
        crowd.submit(request(name, sampling=sampling if name == "a" else SamplingSettings(temperature=1.0, seed=9)))
    assert tokens(run(alone)["a"]) == tokens(run(crowd)["a"])


def test_a_broken_engine_ends_every_request_with_the_reason() -> None:
    engine = MarkovEngine()
    engine.fails_at = 3
    loop = DecodeLoop(engine, None)
    for name in ("a", "b"):
        loop.submit(request(name))
    chunks = run(loop)
    for name in ("a", "b"):
        assert chunks[name][-1].finish_reason == "error"
        assert "the engine broke" in chunks[name][-1].error
    engine.fails_at = None
    loop.submit(request("a"))
    assert tokens(run(loop)["a"]) == greedy_answer(engine, (1, 2), 20)


def test_what_a_step_made_ready_needs_no_drafter() -> None:
    loop = DecodeLoop(MarkovEngine(agreement=1.0), None)
    loop.submit(request("a", draft_tokens=3))
    assert tokens(loop.step())
    assert loop.statistics.num_drafter_passes == 0
    assert loop.draft() == []
    assert loop.statistics.num_drafter_passes == 1
    # The next step begins with what nobody did before it, and does nothing twice.
    loop.step()
    assert loop.statistics.num_drafter_passes == 1
    loop.step()
    assert loop.statistics.num_drafter_passes == 2


def test_a_drafter_that_breaks_ends_what_still_runs_and_no_answer_that_was_whole() -> None:
    engine = MarkovEngine(agreement=1.0)
    loop = DecodeLoop(engine, None)
    loop.submit(request("short", max_tokens=1))
    loop.submit(request("long"))
    assert [chunk.request_id for chunk in loop.step() if chunk.finish_reason == "length"] == ["short"]
    engine.run_drafter = lambda rows, draft_tokens: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    (chunk,) = loop.draft()
    assert (chunk.request_id, chunk.finish_reason) == ("long", "error")
    assert not loop.has_work
