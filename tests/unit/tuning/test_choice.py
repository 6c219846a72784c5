"""The choice of K from costs that are known."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from peagle_trt.roofline import curve_from_shares
from peagle_trt.tuning.acceptance import Traffic
from peagle_trt.tuning.choice import anchors, as_schedule, choose, passes_of, rate, shortlist
from peagle_trt.tuning.passes import PLAIN, PassKind

TRAFFIC = Traffic(
    acceptance=curve_from_shares((0.7, 0.4, 0.2, 0.1, 0.05), source="a test"),
    num_steps=100,
    context_tokens=100,
    loop_seconds=0.0,
    output_tokens=1e9,
    prompt_seconds=0.0,
    drafter_prompt_seconds=0.0,
)
"""Answers without end, so that prompts do not count."""


def seconds(kind: PassKind) -> float:
    """A row costs a twentieth of the target's weights; the drafter costs a tenth and half as much a row."""
    rows = kind.batch_size * (kind.draft_tokens + 1)
    return 1.0 + rows / 20 if kind.model == "target" else 0.1 + rows / 40


def best_of_all(load: int) -> int:
    return max(range(6), key=lambda count: rate(TRAFFIC, load, count, seconds))


def measured(load: int, counts: list[int]) -> dict[PassKind, float]:
    return {kind: seconds(kind) for count in counts for kind in passes_of(load, count)}


def test_a_rate_is_tokens_over_both_passes_and_the_loop() -> None:
    # Two requests of 1 + 0.7 tokens; 4 rows verified: 1.2; 4 rows of the drafter: 0.2.
    assert rate(TRAFFIC, 2, 1, seconds) == pytest.approx(2 * 1.7 / 1.4)
    slow = replace(TRAFFIC, loop_seconds=0.3)
    assert rate(slow, 2, 1, seconds) == pytest.approx(2 * 1.7 / 2.0)
    assert rate(TRAFFIC, 1, 0, seconds) == pytest.approx(1 / 1.05)


@pytest.mark.parametrize("load", [1, 2, 4, 8, 32, 128])
def test_the_best_k_is_found_with_few_passes(load: int) -> None:
    counts = shortlist(TRAFFIC, load, seconds)
    assert counts[0] == 0
    choice = choose(TRAFFIC, load, seconds, measured(load, counts))
    top = rate(TRAFFIC, load, best_of_all(load), seconds)
    assert choice.best.measured is not None
    assert choice.best.measured >= 0.99 * top


def test_short_answers_do_not_pay_for_a_drafter_that_reads_long_prompts() -> None:
    short = replace(TRAFFIC, output_tokens=18.0, prompt_seconds=2.0, drafter_prompt_seconds=1.0)
    # 17 tokens after the first: 17 plain steps of 1.05, or 10 of 1.1 + 0.15.
    assert rate(short, 1, 0, seconds) == pytest.approx(18 / (2 + 17 * 1.05))
    assert rate(short, 1, 1, seconds) == pytest.approx(18 / (3 + 10 * 1.25))
    shorter = replace(short, output_tokens=2.0)
    assert choose(shorter, 1, seconds, measured(1, shortlist(shorter, 1, seconds))).best.draft_tokens == 0


def test_many_requests_leave_no_room_for_drafts() -> None:
    assert best_of_all(1) > best_of_all(8) > best_of_all(128) == 0
    choice = choose(TRAFFIC, 128, seconds, measured(128, shortlist(TRAFFIC, 128, seconds)))
    assert (choice.best.draft_tokens, choice.speedup) == (0, 1.0)


def test_what_was_measured_overrules_what_was_predicted() -> None:
    times = measured(1, [0, 2, 3])
    times[PassKind(model="target", draft_tokens=3, batch_size=1)] *= 3
    assert choose(TRAFFIC, 1, seconds, times).best.draft_tokens == 2


def test_of_equals_the_smaller_k_is_taken() -> None:
    flat = replace(TRAFFIC, acceptance=curve_from_shares((0.7, 0.003), source="a test"))
    free = {kind: 1.0 if kind.model == "target" else 0.0 for count in (0, 1, 2) for kind in passes_of(1, count)}
    assert choose(flat, 1, seconds, free).best.draft_tokens == 1


def test_a_k_whose_passes_were_not_measured_is_never_chosen() -> None:
    choice = choose(TRAFFIC, 1, seconds, measured(1, [0, 1]))
    assert choice.best.draft_tokens == 1
    assert choice.candidates[3].measured is None


def test_loads_of_one_k_are_one_pair() -> None:
    found = {load: measured(load, shortlist(TRAFFIC, load, seconds)) for load in (8, 1, 2, 128)}
    choices = [choose(TRAFFIC, load, seconds, times) for load, times in found.items()]
    schedule = as_schedule(choices)
    assert [load for load, _ in schedule] == sorted(load for load, _ in schedule)
    assert schedule[-1] == (128, 0)
    assert all(left[1] != right[1] for left, right in itertools.pairwise(schedule))


def test_anchors_span_what_is_asked() -> None:
    kinds = anchors([2, 4, 8], 8)
    assert {kind.batch_size for kind in kinds} == {2, 8}
    assert {kind.draft_tokens for kind in kinds if kind.model == "drafter"} == {1, 4, 8}
    assert PLAIN in anchors([1], 1)
