"""A build's own schedule: K by the number of running answers, for requests that leave K open."""

from __future__ import annotations

import msgspec
import pytest

from peagle_trt.decode.loop import DecodeLoop
from peagle_trt.decode.request import DraftTokens, GenerationRequest, RequestMetrics
from peagle_trt.spec import GraphShapes
from tests.support.markov_engine import MarkovEngine


def tuned(*schedule: tuple[int, int]) -> MarkovEngine:
    engine = MarkovEngine(max_batch_size=4)
    engine.shapes = msgspec.structs.replace(engine.shapes, draft_schedule=schedule)
    return engine


def answer(engine: MarkovEngine, *draft_tokens: DraftTokens) -> list[tuple[tuple[int, ...], RequestMetrics]]:
    """Tokens and metrics of requests that start together, each with a K of its own."""
    loop = DecodeLoop(engine, None)
    for index, count in enumerate(draft_tokens):
        prompt = (index, 2)
        loop.submit(GenerationRequest(request_id=str(index), prompt_ids=prompt, max_tokens=30, draft_tokens=count))
    tokens: dict[str, tuple[int, ...]] = {}
    found: dict[str, RequestMetrics] = {}
    while loop.has_work:
        for chunk in loop.step():
            tokens[chunk.request_id] = (*tokens.get(chunk.request_id, ()), *chunk.token_ids)
            if chunk.metrics is not None:
                found[chunk.request_id] = chunk.metrics
    return [(tokens[name], found[name]) for name in sorted(found)]


def test_one_answer_gets_the_k_of_one() -> None:
    ((_, metrics),) = answer(tuned((1, 5), (4, 2)), None)
    assert len(metrics.accepted_by_position) == 5
    assert metrics.num_draft_tokens > 2 * metrics.num_verify_steps


def test_several_answers_get_the_k_of_their_number() -> None:
    for _, metrics in answer(tuned((1, 5), (4, 2)), None, None, None):
        # The last answer to end runs alone for a while.
        assert metrics.num_draft_tokens <= 2 * metrics.num_verify_steps + 3 * 5
        assert metrics.num_verify_steps > 0


def test_a_k_of_nought_decodes_plainly_and_tokens_stay_the_same() -> None:
    plain = [tokens for tokens, _ in answer(tuned(), 0, 0, 0)]
    scheduled = answer(tuned((1, 3), (2, 0)), None, None, None)
    assert [tokens for tokens, _ in scheduled] == plain
    ((_, alone),) = answer(tuned((1, 0)), None)
    assert (alone.num_verify_steps, alone.num_drafter_passes) == (0, 0)


def test_beyond_the_last_load_its_k_holds() -> None:
    shapes = tuned((1, 5), (2, 3)).shapes
    assert [shapes.default_drafts(count) for count in (1, 2, 3, 100)] == [5, 3, 3, 3]
    assert tuned().shapes.default_drafts(7) == tuned().shapes.draft_tokens


@pytest.mark.parametrize(("schedule", "least"), [((), 4), (((1, 4), (2, 2)), 2), (((1, 4), (2, 0)), 0)])
def test_the_least_k_is_known_beforehand(schedule: tuple[tuple[int, int], ...], least: int) -> None:
    shapes = msgspec.structs.replace(tuned().shapes, draft_tokens=4, draft_schedule=schedule)
    assert shapes.least_default_drafts == least


def test_whoever_asks_for_a_k_gets_it() -> None:
    ((_, metrics),) = answer(tuned((4, 1)), 4)
    assert metrics.num_draft_tokens > metrics.num_verify_steps


def test_drafts_resume_when_others_have_left() -> None:
    engine = tuned((1, 4), (2, 0))
    loop = DecodeLoop(engine, None)
    loop.submit(GenerationRequest(request_id="short", prompt_ids=(1, 2), max_tokens=3))
    loop.submit(GenerationRequest(request_id="long", prompt_ids=(3, 2), max_tokens=40))
    steps = {}
    while loop.has_work:
        steps |= {chunk.request_id: chunk.metrics for chunk in loop.step() if chunk.metrics is not None}
    assert steps["short"].num_verify_steps == 0
    assert steps["long"].num_verify_steps > 0


@pytest.mark.parametrize("schedule", [((2, 1), (1, 1)), ((1, 1), (1, 2)), ((0, 1),), ((1, 17),), ((1, -1),)])
def test_a_schedule_without_sense_is_refused(schedule: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ValueError, match="draft_schedule"):
        tuned(*schedule)
        msgspec.convert(
            {
                "draft_tokens": 3,
                "max_draft_tokens": 16,
                "max_batch_size": 4,
                "max_sequence_length": 8,
                "cache_capacity": 8,
                "draft_schedule": schedule,
            },
            GraphShapes,
        )


def test_an_untuned_manifest_is_written_as_before() -> None:
    assert "draft_schedule" not in msgspec.to_builtins(MarkovEngine().shapes)
