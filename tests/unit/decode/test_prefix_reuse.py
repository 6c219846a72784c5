"""Prompts that go on from what a slot still holds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from peagle_trt.decode.loop import DecodeLoop
from peagle_trt.decode.request import GenerationRequest
from peagle_trt.decode.slots import Leftover, Slots
from tests.support.markov_engine import MarkovEngine

PROMPT = tuple((index * index) % 6 for index in range(60))
turns = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 6), st.sampled_from([0, 3, "auto"]), st.integers(1, 20)),
    min_size=2,
    max_size=10,
)


def ask(loop: DecodeLoop, prompt: tuple[int, ...], draft_tokens: object, length: int) -> list[int]:
    request = GenerationRequest(
        request_id="a",
        prompt_ids=prompt,
        max_tokens=length,
        draft_tokens=draft_tokens,  # type: ignore[arg-type]
    )
    loop.submit(request)
    found: list[int] = []
    while loop.has_work:
        for chunk in loop.step():
            assert chunk.finish_reason != "error", chunk.error
            found += chunk.token_ids
    return found


def greedy_answer(engine: MarkovEngine, prompt: tuple[int, ...], length: int) -> list[int]:
    history = list(prompt)
    for _ in range(length):
        history.append(int(engine.next_logits(history).argmax()))
    return history[len(prompt) :]


@settings(max_examples=80, deadline=None)
@given(turns, st.sampled_from([1, 3]))
def test_answers_are_the_same_whatever_the_slots_hold(turns: list[tuple[int, int, object, int]], slots: int) -> None:
    engine = MarkovEngine(max_batch_size=slots, max_sequence_length=400)
    loop = DecodeLoop(engine, None, reuses_prefixes=True)
    for shared, token, draft_tokens, length in turns:
        prompt = (*PROMPT[:shared], token, token, 1)
        assert ask(loop, prompt, draft_tokens, length) == greedy_answer(engine, prompt, length)


def test_the_next_turn_of_a_chat_reads_only_what_is_new() -> None:
    loop = DecodeLoop(MarkovEngine(max_sequence_length=400), None, reuses_prefixes=True)
    answer = ask(loop, PROMPT, 3, 20)
    ask(loop, (*PROMPT, *answer, 1, 2, 3), 3, 4)
    # The last token of the answer was never read, and the row before it, and what was drafted near the end, is again.
    assert 60 + 20 - 8 <= loop.statistics.num_reused_tokens < 60 + 20


def test_the_same_prompt_again_reads_its_last_row_again() -> None:
    loop = DecodeLoop(MarkovEngine(max_sequence_length=400), None, reuses_prefixes=True)
    assert ask(loop, PROMPT, 3, 20) == ask(loop, PROMPT, 3, 20)
    assert loop.statistics.num_reused_tokens == len(PROMPT) - 1


def test_nothing_is_reused_unless_asked_for() -> None:
    loop = DecodeLoop(MarkovEngine(max_sequence_length=400), None)
    assert ask(loop, PROMPT, 3, 20) == ask(loop, PROMPT, 3, 20)
    assert loop.statistics.num_reused_tokens == 0


def test_a_drafter_that_read_less_limits_who_drafts_and_nobody_else() -> None:
    for drafts, expected in ((True, 20), (False, 59)):
        slots = Slots(1, reuses_prefixes=True)
        slots.take(PROMPT, drafts=True)
        slots.give_back(0, Leftover(token_ids=PROMPT, num_target=60, num_drafter=20))
        taken = slots.take(PROMPT, drafts=drafts)
        assert (taken.num_target, taken.num_drafter) == (expected, 20)


def test_a_slot_whose_request_failed_is_not_trusted() -> None:
    engine = MarkovEngine(max_batch_size=1, max_sequence_length=400)
    loop = DecodeLoop(engine, None, reuses_prefixes=True)
    engine.fails_at = 2
    loop.submit(GenerationRequest(request_id="a", prompt_ids=PROMPT, max_tokens=20))
    while loop.has_work:
        loop.step()
    engine.fails_at = None
    ask(loop, PROMPT, 3, 4)
    assert loop.statistics.num_reused_tokens == 0


def test_the_slot_that_holds_most_is_taken_and_otherwise_the_oldest() -> None:
    slots = Slots(3, reuses_prefixes=True)
    for _ in range(3):
        slots.take((), drafts=True)
    for slot, length in ((2, 30), (0, 60), (1, 0)):
        slots.give_back(slot, Leftover(token_ids=PROMPT[:length], num_target=length, num_drafter=length))
    assert slots.take(PROMPT, drafts=True).slot == 0
    assert slots.take((6,) * 40, drafts=True).slot == 2
