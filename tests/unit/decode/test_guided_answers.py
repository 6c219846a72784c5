"""Answers that follow a grammar, with and without drafts, on an engine whose distributions are known."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from peagle_trt.decode.guide import GuideBars
from peagle_trt.decode.guided_drafts import drawn_with, guided_drafts, likeliest
from peagle_trt.decode.loop import DecodeLoop
from peagle_trt.decode.request import GenerationChunk, GenerationRequest, SamplingSettings
from peagle_trt.decode.sampling import distribution
from peagle_trt.engine.protocol import DraftCandidates, DraftOutput
from peagle_trt.errors import RequestError
from tests.support.markov_engine import VOCABULARY, MarkovEngine, SequentialMarkovEngine
from tests.support.table_guide import TableGuide
from tests.unit.decode.test_sampling_is_exact import chi_square_is_plausible

END = 6
# (0|1) 2 ((3|4) 2)* 5
LOOPING = TableGuide({0: {0: 1, 1: 1}, 1: {2: 2}, 2: {3: 1, 4: 1, 5: 3}, 3: {}}, {3}, vocab_size=VOCABULARY)
# 0 1 2 3 4 5 0 1 2 3 4 5: one answer alone.
FIXED = TableGuide({place: {place % 6: place + 1} for place in range(12)}, {12}, vocab_size=VOCABULARY)
# Any run of 0, 1 and 2, the empty one included.
OPEN = TableGuide({0: {0: 0, 1: 0, 2: 0}}, {0}, vocab_size=VOCABULARY)
ENGINES = [MarkovEngine, SequentialMarkovEngine]
EVERY_K = [0, 1, 3, 6]


def ask(request_id: str, guide: TableGuide, **settings: object) -> GenerationRequest:
    fields = {"request_id": request_id, "prompt_ids": (1, 2), "max_tokens": 24, "guide": guide, **settings}
    return GenerationRequest(**fields)  # type: ignore[arg-type]


def run(engine: MarkovEngine, *requests: GenerationRequest) -> dict[str, list[GenerationChunk]]:
    loop = DecodeLoop(engine, None)
    for request in requests:
        loop.submit(request)
    chunks: dict[str, list[GenerationChunk]] = {request.request_id: [] for request in requests}
    while loop.has_work:
        for chunk in loop.step():
            chunks[chunk.request_id].append(chunk)
    return chunks


def tokens(chunks: list[GenerationChunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


def walked(engine: MarkovEngine, guide: TableGuide, length: int, end_ids: tuple[int, ...] = ()) -> list[int]:
    """What the target says at its likeliest among what the grammar allows."""
    history, state = [1, 2], 0
    while len(history) < 2 + length and (guide.table.get(state) or state not in guide.accepting):
        allowed = [*guide.table[state], *(end_ids if state in guide.accepting else ())]
        token = max(allowed, key=lambda token: engine.next_logits(history)[token])
        if token in end_ids:
            break
        history.append(token)
        state = guide.table[state][token]
    return history[2:]


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("drafts", EVERY_K)
@pytest.mark.parametrize("guide", [LOOPING, FIXED, OPEN])
@pytest.mark.parametrize("agreement", [0.0, 1.0])
@pytest.mark.parametrize("end_ids", [(), (END,)])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_greedy_answer_is_the_walk_over_masked_logits(
    kind: type[MarkovEngine], drafts: int, guide: TableGuide, agreement: float, end_ids: tuple[int, ...], seed: int
) -> None:
    engine = kind(agreement=agreement, seed=seed)
    chunks = run(engine, ask("a", guide, draft_tokens=drafts, end_ids=end_ids))["a"]
    assert tokens(chunks) == walked(engine, guide, 24, end_ids)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_prompt_lookup_leaves_a_guided_answer_and_its_drafts(kind: type[MarkovEngine], temperature: float) -> None:
    def ended(prompt_lookup: bool) -> tuple[list[int], int, tuple[int, ...], int]:
        sampling = SamplingSettings(temperature=temperature, seed=3)
        # The prompt repeats what the grammar forbids.
        prompt = (4, 0, 4, 0, 4, 0, 1, 2)
        request = ask("a", LOOPING, prompt_ids=prompt, draft_tokens=4, sampling=sampling, prompt_lookup=prompt_lookup)
        chunks = run(kind(agreement=0.6), request)["a"]
        metrics = chunks[-1].metrics
        assert metrics is not None
        return tokens(chunks), metrics.num_verify_steps, metrics.accepted_by_position, metrics.num_looked_up_tokens

    assert ended(True) == ended(False)


@pytest.mark.parametrize("drafts", EVERY_K)
def test_an_answer_ends_where_its_grammar_does(drafts: int) -> None:
    chunks = run(MarkovEngine(), ask("a", FIXED, draft_tokens=drafts))["a"]
    assert tokens(chunks) == [0, 1, 2, 3, 4, 5] * 2
    assert chunks[-1].finish_reason == "stop"


@pytest.mark.parametrize("drafts", EVERY_K)
def test_an_answer_that_ends_at_its_very_limit_is_whole(drafts: int) -> None:
    chunks = run(MarkovEngine(), ask("a", FIXED, draft_tokens=drafts, max_tokens=12))["a"]
    assert (tokens(chunks), chunks[-1].finish_reason) == ([0, 1, 2, 3, 4, 5] * 2, "stop")


@pytest.mark.parametrize("drafts", EVERY_K)
def test_an_answer_that_is_cut_off_says_so(drafts: int) -> None:
    chunks = run(MarkovEngine(agreement=1.0), ask("a", FIXED, draft_tokens=drafts, max_tokens=9))["a"]
    assert (tokens(chunks), chunks[-1].finish_reason) == (([0, 1, 2, 3, 4, 5] * 2)[:9], "length")


@pytest.mark.parametrize("kind", ENGINES)
def test_drafts_that_the_grammar_forces_are_all_accepted(kind: type[MarkovEngine]) -> None:
    # An unrelated drafter: without the mask hardly any of its drafts would stand.
    (last,) = run(kind(agreement=0.0), ask("a", FIXED, draft_tokens=4))["a"][-1:]
    assert last.metrics is not None
    assert last.metrics.num_accepted_tokens == last.metrics.num_draft_tokens > 0


@pytest.mark.parametrize("samples_drafts", [False, True], ids=["argmax-drafts", "drawn-drafts"])
def test_sampled_answers_follow_the_targets_masked_distribution(samples_drafts: bool) -> None:
    engine, settings = MarkovEngine(agreement=0.8, max_batch_size=8), SamplingSettings(temperature=0.9, top_k=4)
    loop, found = DecodeLoop(engine, None), dict[str, tuple[int, ...]]()
    for seed in range(4000):
        sampling = SamplingSettings(temperature=0.9, top_k=4, seed=seed)
        loop.submit(
            ask(str(seed), LOOPING, max_tokens=4, draft_tokens=3, sampling=sampling, samples_drafts=samples_drafts)
        )
    while loop.has_work:
        for chunk in loop.step():
            found[chunk.request_id] = found.get(chunk.request_id, ()) + chunk.token_ids
    assert chi_square_is_plausible(Counter(found.values()), exact_probabilities(engine, settings))


def exact_probabilities(engine: MarkovEngine, settings: SamplingSettings) -> dict[tuple[int, ...], float]:
    exact = dict[tuple[int, ...], float]()
    for length in (3, 4):
        for answer in itertools.product(range(VOCABULARY), repeat=length):
            if not LOOPING.follows(answer) or (length == 3 and answer[-1] != 5):
                continue
            probability, history, state = 1.0, [1, 2], 0
            for token in answer:
                masked = np.full(VOCABULARY, -np.inf, np.float32)
                allowed = list(LOOPING.table[state])
                masked[allowed] = engine.next_logits(history)[allowed]
                probability *= distribution(masked, settings)[token]
                history.append(token)
                state = LOOPING.table[state][token]
            exact[answer] = probability
    return exact


def test_a_grammar_that_fails_takes_no_other_answer_with_it() -> None:
    failing = TableGuide(OPEN.table, OPEN.accepting, vocab_size=VOCABULARY, max_tokens=5)
    engine = MarkovEngine(agreement=1.0)
    chunks = run(engine, ask("a", failing, draft_tokens=3), ask("b", OPEN, draft_tokens=3))
    assert (chunks["a"][-1].finish_reason, chunks["b"][-1].finish_reason) == ("error", "length")
    assert "cannot be followed" in chunks["a"][-1].error
    assert tokens(chunks["b"]) == walked(engine, OPEN, 24)


@pytest.mark.parametrize(
    ("sampling", "name"), [({"bad_words": ((1,),)}, "bad_words"), ({"min_tokens": 3}, "min_tokens")]
)
def test_what_may_leave_nothing_to_choose_is_refused(sampling: dict[str, object], name: str) -> None:
    with pytest.raises(RequestError, match=f"`{name}` and a grammar"):
        run(MarkovEngine(), ask("a", OPEN, sampling=SamplingSettings(**sampling)))  # type: ignore[arg-type]


def output_of(logits: list[list[float]]) -> DraftOutput:
    rows = np.array([logits], np.float32)
    return DraftOutput(token_ids=rows.argmax(-1).astype(np.int32), logits=rows)


def drafts_of(guide: TableGuide, output: DraftOutput, ids: list[int], end_ids: tuple[int, ...] = ()) -> tuple[int, ...]:
    bars = GuideBars(guide, end_ids)
    drafts = guided_drafts(bars, output, 0, np.array(ids), max_drafts=3, vocab_size=VOCABULARY, choose=likeliest)
    bars.undo_drafts()
    assert bars.allowed().tolist() == GuideBars(guide, end_ids).allowed().tolist()
    return drafts.token_ids


def test_a_forced_token_is_drafted_though_the_drafter_has_no_name_for_it() -> None:
    # Its vocabulary is 0, 1 and 4; the grammar's second token is 2 and nothing else.
    assert drafts_of(LOOPING, output_of([[0, 9, 1], [9, 0, 0], [0, 0, 9]]), [0, 1, 4]) == (1, 2, 4)


def test_drafts_stop_where_the_drafter_can_say_nothing_that_is_allowed() -> None:
    assert drafts_of(LOOPING, output_of([[9, 0], [9, 0], [9, 0]]), [5, 6]) == ()


def test_an_end_is_the_last_draft() -> None:
    rows = [[0.0, 0, 0, 0, 0, 0, 9]] * 3
    assert drafts_of(OPEN, output_of(rows), list(range(VOCABULARY)), (END,)) == (END,)
    assert drafts_of(OPEN, output_of(rows), list(range(VOCABULARY))) == (0, 0, 0)


def test_candidates_are_masked_where_there_are_no_logits() -> None:
    ids = np.array([[[6, 1, 0], [6, 3, 2], [4, 6, 5]]], np.int32)
    probabilities = np.array([[[0.8, 0.15, 0.05], [0.9, 0.1, 0.0], [0.5, 0.3, 0.2]]], np.float32)
    candidates = DraftCandidates(token_ids=ids, probabilities=probabilities)
    output = DraftOutput(token_ids=ids[:, :, 0], candidates=candidates)
    assert drafts_of(LOOPING, output, []) == (1, 2, 4)


def test_drawn_drafts_come_with_the_masked_distribution() -> None:
    rows = output_of([[1.0, 2.0, 9, 9, 9, 9, 9]])
    bars, choose = GuideBars(LOOPING, ()), drawn_with(1.0, np.random.default_rng(0))
    drafts = guided_drafts(bars, rows, 0, np.arange(VOCABULARY), max_drafts=1, vocab_size=VOCABULARY, choose=choose)
    expected = np.exp([1.0, 2.0]) / np.exp([1.0, 2.0]).sum()
    assert drafts.probabilities_KV is not None
    np.testing.assert_allclose(drafts.probabilities_KV[0], [*expected, 0, 0, 0, 0, 0], atol=1e-9)
