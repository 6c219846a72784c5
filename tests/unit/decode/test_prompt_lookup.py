"""Drafts copied from the text: where it has been before, whom to believe, and that no answer changes for it."""

from __future__ import annotations

import random
import tracemalloc

import numpy as np
import pytest

from peagle_trt.decode.loop import DecodeLoop
from peagle_trt.decode.prompt_lookup import LONGEST_MATCH, MAX_PLACES, DraftLookup, LookupExperience, SeenText
from peagle_trt.decode.request import DraftTokens, GenerationRequest, RequestMetrics, SamplingSettings
from tests.support.markov_engine import MarkovEngine, SequentialMarkovEngine

NOVEL = 99


def following(text: list[int]) -> int | None:
    """What a slow search finds: after the longest match, the latest of equals."""
    best: tuple[int, int] | None = None
    for position in range(2, len(text)):
        length = 0
        while length < min(LONGEST_MATCH, position) and text[position - length - 1] == text[-length - 1]:
            length += 1
        if length >= 2 and (best is None or length >= best[0]):
            best = (length, text[position])
    return None if best is None else best[1]


@pytest.mark.parametrize("seed", range(20))
def test_it_finds_the_longest_match_and_the_latest_of_equals(seed: int) -> None:
    chooser = random.Random(seed)
    # Few repetitions of a pair, so that none is forgotten.
    text = [chooser.randrange(12) for _ in range(150)]
    seen = SeenText()
    for end in range(len(text)):
        seen.read(text[:end])
        place = seen.find(text[:end])
        assert (None if place is None else text[place.position]) == following(text[:end])


def test_older_places_than_the_latest_few_are_forgotten() -> None:
    # Eight tokens alike at the oldest place, two at every later one.
    text = [
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
        50,
        *[token for other in range(MAX_PLACES) for token in (20 + other, 7, 8, 30 + other)],
    ]
    end = [1, 2, 3, 4, 5, 6, 7, 8]
    for kept in (MAX_PLACES - 1, MAX_PLACES):
        grown = [*text[: 9 + 4 * kept], *end]
        seen = SeenText()
        seen.read(grown)
        place = seen.find(grown)
        assert place is not None
        assert grown[place.position] == (50 if kept < MAX_PLACES else 30 + MAX_PLACES - 1)


def test_a_long_prompt_takes_some_hundred_bytes_a_token() -> None:
    chooser = random.Random(0)
    text = [chooser.randrange(50_000) for _ in range(32_000)]
    tracemalloc.start()
    lookup = DraftLookup(LookupExperience())
    lookup.mix(text, [1] * 5, None)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 200 * len(text)


@pytest.mark.parametrize("seed", range(20))
def test_a_text_that_grew_is_looked_through_like_a_new_one(seed: int) -> None:
    chooser = random.Random(seed)
    text = [chooser.randrange(6) for _ in range(chooser.randrange(4))]
    grown = DraftLookup(LookupExperience())
    for _ in range(60):
        head = [chooser.randrange(6) for _ in range(chooser.randrange(9))]
        before = [*text]
        mixed = grown.mix(text, head, None)[0]
        # Nothing is learned here, so that both believe the same.
        assert mixed == DraftLookup(LookupExperience()).mix(text, head, None)[0]
        assert (len(mixed), text) == (len(head), before)
        text += [chooser.randrange(6) for _ in range(chooser.randrange(1, 4))]


def test_ids_of_numpy_are_ids() -> None:
    text, head = [70_000, 2, 3, 70_001, 70_000, 2, 3], [70_001, NOVEL, NOVEL]
    found = DraftLookup(LookupExperience()).mix(list(np.array(text, np.int32)), list(np.array(head, np.int32)), None)
    assert found[0] == DraftLookup(LookupExperience()).mix(text, head, None)[0] == (70_001, 70_000, 2)


@pytest.mark.parametrize("length", [3, 4, 500])
@pytest.mark.parametrize("num_drafts", [1, 2, 16])
def test_one_token_over_and_over_goes_on_at_any_length(length: int, num_drafts: int) -> None:
    lookup, text = DraftLookup(LookupExperience()), [5] * length
    assert lookup.mix(text, [5, *[NOVEL] * 15][:num_drafts], None)[0] == (5,) * num_drafts
    assert lookup.judge([5] * (num_drafts + 1), num_drafts) == num_drafts - 1


def test_a_copy_takes_the_place_of_a_later_draft_and_not_of_the_first() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3]
    drafts, _ = DraftLookup(LookupExperience()).mix(text, [NOVEL, NOVEL, NOVEL], None)
    assert drafts == (NOVEL, NOVEL, NOVEL)
    drafts, _ = DraftLookup(LookupExperience()).mix(text, [4, NOVEL, NOVEL], None)
    assert drafts == (4, 5, 6)


def test_a_short_loop_goes_on_into_its_own_drafts() -> None:
    drafts, _ = DraftLookup(LookupExperience()).mix([1, 2, 1, 2, 1], [2, NOVEL, NOVEL, NOVEL, NOVEL], None)
    assert drafts == (2, 1, 2, 1, 2)


@pytest.mark.parametrize("text", [[], [1], [1, 2], [1, 1]])
def test_a_text_too_short_to_repeat_leaves_the_drafts(text: list[int]) -> None:
    assert DraftLookup(LookupExperience()).mix(text, [5, 6], None)[0] == (5, 6)


def test_who_is_right_is_learned_and_shared_with_the_next_request() -> None:
    shared = LookupExperience()
    text, head = [1, 2, 3, 4, 1, 2, 3], [4, NOVEL]
    lookup = DraftLookup(shared)
    assert lookup.mix(text, head, None)[0] == (4, 1)
    for _ in range(30):
        lookup.mix(text, head, None)
        assert lookup.judge([4, NOVEL], 1) == 0
    assert lookup.mix(text, head, None)[0] == (4, NOVEL)
    assert DraftLookup(shared).mix(text, head, None)[0] == (4, NOVEL)
    for _ in range(300):
        lookup.mix(text, head, None)
        assert lookup.judge([4, 1, 5], 2) == 1
    assert DraftLookup(shared).mix(text, head, None)[0] == (4, 1)


def test_drafts_behind_the_first_refused_one_are_not_judged() -> None:
    shared = LookupExperience()
    lookup = DraftLookup(shared)
    before = [shared.chances(kind) for kind in range(16)]
    for _ in range(20):
        lookup.mix([1, 2, 3, 4, 1, 2, 3], [4, NOVEL, NOVEL], None)
        lookup.judge([8], 0)
    assert [shared.chances(kind) for kind in range(16)] == before


def test_a_copy_is_as_sure_as_copies_of_its_kind_have_been() -> None:
    lookup = DraftLookup(LookupExperience())
    given = np.array([0.9, 0.2])
    drafts, sure_K = lookup.mix([1, 2, 3, 4, 1, 2, 3], [4, NOVEL], given)
    assert sure_K is not None
    assert drafts == (4, 1)
    assert sure_K[0] == 0.9
    assert sure_K[1] > 0.2
    assert given.tolist() == [0.9, 0.2]


def run(
    engine: MarkovEngine, *, prompt_lookup: bool, draft_tokens: DraftTokens, in_flight: int, temperature: float
) -> tuple[dict[str, tuple[int, ...]], list[RequestMetrics]]:
    loop = DecodeLoop(engine, None)
    for seed in range(in_flight):
        loop.submit(
            GenerationRequest(
                request_id=str(seed),
                prompt_ids=(seed % 5, 2),
                max_tokens=40,
                draft_tokens=draft_tokens,
                prompt_lookup=prompt_lookup,
                sampling=SamplingSettings(temperature=temperature, seed=seed),
            )
        )
    found: dict[str, tuple[int, ...]] = {}
    metrics = []
    while loop.has_work:
        for chunk in loop.step():
            found[chunk.request_id] = found.get(chunk.request_id, ()) + tuple(chunk.token_ids)
            metrics += [chunk.metrics] if chunk.metrics is not None else []
    return found, metrics


@pytest.mark.parametrize("kind", [MarkovEngine, SequentialMarkovEngine])
@pytest.mark.parametrize("draft_tokens", [1, 3, 7, "auto"])
@pytest.mark.parametrize("in_flight", [1, 8])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_answers_are_those_of_plain_decoding(
    kind: type[MarkovEngine], draft_tokens: DraftTokens, in_flight: int, temperature: float
) -> None:
    def new() -> MarkovEngine:
        return kind(agreement=0.6, max_batch_size=8, draft_tokens=7)

    plain, _ = run(new(), prompt_lookup=False, draft_tokens=0, in_flight=in_flight, temperature=temperature)
    found, _ = run(new(), prompt_lookup=True, draft_tokens=draft_tokens, in_flight=in_flight, temperature=temperature)
    assert found == plain


def test_an_answer_that_repeats_itself_takes_fewer_steps() -> None:
    steps = []
    for prompt_lookup in (False, True):
        engine = MarkovEngine(agreement=0.6, draft_tokens=7)
        _, metrics = run(engine, prompt_lookup=prompt_lookup, draft_tokens=7, in_flight=4, temperature=0.0)
        steps.append(sum(each.num_verify_steps for each in metrics))
        copied = sum(each.num_looked_up_tokens for each in metrics)
        assert (copied > 0) == prompt_lookup
        assert copied <= sum(each.num_accepted_tokens for each in metrics)
    # Seven tokens and two of them the state: greedy answers fall into loops.
    assert steps[1] < 0.7 * steps[0]


def test_drawn_drafts_stay_as_they_were_drawn() -> None:
    def answers(prompt_lookup: bool) -> list[tuple[int, ...]]:
        loop = DecodeLoop(MarkovEngine(agreement=0.6), None)
        loop.submit(
            GenerationRequest(
                request_id="0",
                prompt_ids=(1, 2),
                max_tokens=40,
                draft_tokens=3,
                samples_drafts=True,
                prompt_lookup=prompt_lookup,
                sampling=SamplingSettings(temperature=0.9, seed=3),
            )
        )
        return [chunk.token_ids for _ in range(60) if loop.has_work for chunk in loop.step()]

    assert answers(True) == answers(False)
