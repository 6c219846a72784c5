"""Drafts that their drafter does not believe in are cut, and no answer changes for it."""

from __future__ import annotations

import numpy as np
import pytest

from peagle_trt.decode.acceptance_rates import AcceptanceRates
from peagle_trt.decode.confidence import Calibration, slot_confidence
from peagle_trt.decode.loop import DecodeLoop
from peagle_trt.decode.request import GenerationRequest
from peagle_trt.decode.speculation import NUM_FIRST_STEPS, PROBE_PERIOD, DraftWish, SpeculationController
from peagle_trt.engine.protocol import DraftCandidates, DraftOutput
from tests.support.markov_engine import MarkovEngine, SequentialMarkovEngine
from tests.support.timed_engine import TimedEngine

IDS = np.zeros((1, 2), np.int32)


def test_confidence_is_the_largest_probability_of_each_slot() -> None:
    logits = np.log(np.array([[[0.7, 0.2, 0.1], [0.3, 0.3, 0.4]]], np.float32)) + 50.0
    assert slot_confidence(DraftOutput(token_ids=IDS, logits=logits), 0) == pytest.approx([0.7, 0.4], rel=1e-5)


def test_confidence_is_taken_from_candidates_where_there_are_no_logits() -> None:
    found = DraftCandidates(
        token_ids=np.zeros((1, 2, 2), np.int32), probabilities=np.array([[[0.7, 0.2], [0.5, 0.1]]], np.float32)
    )
    assert slot_confidence(DraftOutput(token_ids=IDS, candidates=found), 0) == pytest.approx([0.7, 0.5])


def test_a_drafter_that_is_too_sure_is_believed_less() -> None:
    shared = Calibration()
    own = Calibration(shared)
    for step in range(400):
        own.add(np.array([0.9]), 1, int(step % 3 == 0))
    assert own.chances(np.array([0.9]))[0] == pytest.approx(1 / 3, abs=0.1)
    assert Calibration(shared).chances(np.array([0.9]))[0] == pytest.approx(1 / 3, abs=0.05)


def test_no_chance_is_above_one() -> None:
    calibration = Calibration()
    for _ in range(100):
        calibration.add(np.array([0.5]), 1, 1)
    assert calibration.chances(np.array([0.9])).tolist() == [1.0]


def test_drafts_that_were_cut_count_for_what_was_expected_of_them() -> None:
    rates = AcceptanceRates(2)
    for step in range(2000):
        # The second draft is verified where it is certain and cut where its chance is a quarter: on average 5/8.
        is_sure = step % 2 == 0
        rates.add(2 if is_sure else 1, 2 if is_sure else 1, np.array([1.0, 1.0 if is_sure else 0.25]))
    assert rates.survival(2)[1] == pytest.approx(5 / 8, abs=0.05)


def controller(row_seconds: float) -> SpeculationController:
    """One that has measured passes of one answer: a second, and so much a row."""
    found = SpeculationController(4)
    for _ in range(NUM_FIRST_STEPS):
        for rows in (1, 3, 5):
            seconds = 1.0 + row_seconds * rows
            found.add_target_pass(num_sequences=1, num_rows=rows, num_drafts=rows - 1, seconds=seconds)
    return found


@pytest.mark.parametrize(("row_seconds", "kept"), [(0.0, 4), (0.3, 2), (5.0, 1)])
def test_the_dearer_a_row_the_surer_a_draft_must_be(row_seconds: float, kept: int) -> None:
    chances = np.array([0.99, 0.8, 0.3, 0.3])
    assert controller(row_seconds).cut([chances], num_sequences=1, base_rows=1) == [kept]


def test_what_is_drafted_to_learn_from_is_not_cut() -> None:
    found = controller(5.0)
    wish = DraftWish(max_drafts=2, rates=found.new_rates(), num_unread=0, can_cut=True)
    for _ in range(PROBE_PERIOD):
        found.add_target_pass(num_sequences=1, num_rows=1, num_drafts=0, seconds=6.0)
    found._load(1).since_plain = 0
    assert found.choose([wish], num_sequences=1, other_rows=0) == [2]
    assert found.cut([np.array([0.01, 0.01])], num_sequences=1, base_rows=1) == [2]


def drafted(engine: MarkovEngine, **fields: object) -> tuple[list[int], int]:
    """Tokens of an answer and the drafts that were verified for it."""
    clock = engine.clock if isinstance(engine, TimedEngine) else lambda: 0.0
    loop = DecodeLoop(engine, None, clock=clock)
    settings = {"request_id": "a", "prompt_ids": (1, 2), "max_tokens": 300, "draft_tokens": "auto"} | fields
    loop.submit(GenerationRequest(**settings))  # type: ignore[arg-type]
    tokens, metrics = [], None
    while loop.has_work:
        for chunk in loop.step():
            tokens += chunk.token_ids
            metrics = chunk.metrics or metrics
    assert metrics is not None
    return tokens, metrics.num_draft_tokens


def timed_engine(row_seconds: float) -> TimedEngine:
    engine = TimedEngine(agreement=0.9, max_sequence_length=400)
    engine.row_seconds, engine.drafter_seconds = row_seconds, 0.0
    return engine


def test_fewer_drafts_are_verified_where_rows_are_dear_and_the_answer_stays() -> None:
    cheap, dear = drafted(timed_engine(0.001)), drafted(timed_engine(0.2))
    plain = drafted(timed_engine(0.2), draft_tokens=0)
    assert dear[1] < 0.8 * cheap[1]
    assert cheap[0] == dear[0] == plain[0]


def test_a_fixed_k_is_never_cut() -> None:
    tokens, num_drafts = drafted(timed_engine(10.0), draft_tokens=3)
    assert num_drafts >= len(tokens) / 4 * 3 - 3


def test_the_slots_of_a_sequential_head_are_never_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpeculationController, "cut", lambda *_, **__: pytest.fail("cut"))
    drafted(SequentialMarkovEngine(max_sequence_length=400))


def test_requests_with_copies_and_without_learn_apart() -> None:
    found = SpeculationController(4)
    plain, mixed = found.new_rates(), found.new_rates(prompt_lookup=True)
    for _ in range(40):
        plain.add(4, 0)
        mixed.add(4, 4)
    assert found.new_rates().survival(4)[0] < 0.2
    assert found.new_rates(prompt_lookup=True).survival(4)[-1] > 0.7
