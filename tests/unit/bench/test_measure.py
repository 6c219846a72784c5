"""The arithmetic of a measurement, on answers and clocks that are known."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from peagle_trt.bench import measure as measuring
from peagle_trt.bench.clients import ClientAnswer
from peagle_trt.bench.measure import Method, measure

PLAIN = Method(name="none", draft_tokens=0, concurrency=1)
FAST = Method(name="p-eagle", draft_tokens=3, concurrency=1)


class Clock:
    """Time that passes only when a client answers."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class ScriptedClient:
    """Ten tokens an answer; a token costs 1 s plain and 0.5 s with drafts."""

    def __init__(self, clock: Clock, *, agrees: bool = True) -> None:
        self.clock = clock
        self.agrees = agrees

    def answer(self, prompts: Sequence[str], method: Method, max_tokens: int) -> list[ClientAnswer]:
        self.clock.now += len(prompts) * 10 * (0.5 if method.draft_tokens else 1.0)
        tokens = tuple(range(10)) if self.agrees or not method.draft_tokens else tuple(range(1, 11))
        return [
            ClientAnswer(
                token_ids=tokens,
                num_output_tokens=10,
                num_verify_steps=4 if method.draft_tokens else 0,
                accepted_by_position=(3, 2, 1) if method.draft_tokens else (),
                time_to_first_token_seconds=0.25,
            )
            for _ in prompts
        ]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(measuring, "time", clock)
    return clock


def test_the_figures_follow_from_the_answers(clock: Clock) -> None:
    plain, fast = measure(ScriptedClient(clock), ["a", "b", "c"], [PLAIN, FAST], max_tokens=10)
    assert (plain.tokens_per_second, fast.tokens_per_second) == (1.0, 2.0)
    assert (plain.speedup, fast.speedup, fast.speedup_low, fast.speedup_high) == (None, 2.0, 2.0, 2.0)
    assert fast.acceptance_by_position == (0.75, 0.5, 0.25)
    assert fast.acceptance_length == 1 + 6 / 4
    assert (plain.acceptance_length, fast.time_to_first_token_ms) == (1.0, 250.0)
    assert (fast.num_output_tokens, fast.is_equal_to_baseline) == (30, 1.0)


def test_answers_that_differ_from_the_baseline_show(clock: Clock) -> None:
    _, fast = measure(ScriptedClient(clock, agrees=False), ["a", "b"], [PLAIN, FAST], max_tokens=10)
    assert fast.is_equal_to_baseline == 0.0


def test_without_a_baseline_there_is_no_speedup(clock: Clock) -> None:
    (fast,) = measure(ScriptedClient(clock), ["a"], [FAST], max_tokens=10)
    assert (fast.speedup, fast.is_equal_to_baseline) == (None, None)
