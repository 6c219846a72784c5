"""The arithmetic of a measurement, on answers and clocks that are known."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from peagle_trt.bench import measure as measuring
from peagle_trt.bench.clients import ClientAnswer
from peagle_trt.bench.measure import Method, Schedule, measure, run_rounds
from peagle_trt.bench.prompt_sets import PromptSet

PLAIN = Method(name="none", draft_tokens=0, concurrency=1)
FAST = Method(name="p-eagle", draft_tokens=3, concurrency=1)


class Clock:
    """Time that passes only when a client answers."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.now / 2


class ScriptedClient:
    """Ten tokens an answer; a token costs 1 s plain and 0.5 s with drafts."""

    max_adaptive_drafts = 3
    is_local = True

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


def test_cpu_time_gives_a_speedup_of_its_own(clock: Clock) -> None:
    _, fast = measure(ScriptedClient(clock), ["a", "b"], [PLAIN, FAST], max_tokens=10)
    assert (fast.tokens_per_cpu_second, fast.speedup_cpu) == (4.0, 2.0)


def test_answers_that_differ_from_the_baseline_show(clock: Clock) -> None:
    _, fast = measure(ScriptedClient(clock, agrees=False), ["a", "b"], [PLAIN, FAST], max_tokens=10)
    assert fast.is_equal_to_baseline == 0.0


def test_without_a_baseline_there_is_no_speedup(clock: Clock) -> None:
    (fast,) = measure(ScriptedClient(clock), ["a"], [FAST], max_tokens=10)
    assert (fast.speedup, fast.is_equal_to_baseline) == (None, None)


class SteppingClient:
    """Answers of known pieces: a prompt of 100 tokens, then 1, 2, 3 and 1 tokens a quarter of a second apart."""

    max_adaptive_drafts = 3
    is_local = False

    def answer(self, prompts: Sequence[str], method: Method, max_tokens: int) -> list[ClientAnswer]:
        return [
            ClientAnswer(
                token_ids=(1, 2, 3, 4, 5, 6, 7),
                num_output_tokens=7,
                num_verify_steps=3,
                accepted_by_position=(2, 1, 0),
                time_to_first_token_seconds=0.5,
                num_prompt_tokens=126,
                piece_seconds=(0.5, 0.75, 1.0, 1.5),
                piece_tokens=(1, 2, 3, 1),
                are_pieces_steps=True,
            )
            for _ in prompts
        ]


def test_what_a_user_sees_follows_from_the_pieces(clock: Clock) -> None:
    clock.perf_counter = iter(range(100)).__next__  # type: ignore[method-assign, assignment]
    (fast,) = measure(SteppingClient(), ["a", "b"], [FAST], max_tokens=10)
    assert fast.tokens_per_second_per_user == 6.0
    assert fast.inter_token_ms is not None and fast.first_token_ms is not None
    assert (fast.inter_token_ms.p50, fast.inter_token_ms.p99, fast.first_token_ms.p90) == (250.0, 500.0, 500.0)
    assert fast.tokens_per_cpu_second is None
    # 127 tokens are present at the first step and 129 at the second; the last piece may have been cut short.
    assert [(each.from_tokens, each.num_steps, each.tokens_a_step) for each in fast.acceptance_by_context] == [
        (0, 2, 2.0),
        (128, 2, 3.0),
    ]


def test_rounds_repeat_and_methods_take_turns_at_going_first() -> None:
    order: list[str] = []

    class Noting(SteppingClient):
        def answer(self, prompts: Sequence[str], method: Method, max_tokens: int) -> list[ClientAnswer]:
            order.append(f"{method.name}:{','.join(prompts)}")
            return super().answer(prompts, method, max_tokens)

    prompt_set = PromptSet(name="set", prompts=("a", "b"))
    schedule = Schedule(prompt_sets=(prompt_set,), methods=(PLAIN, FAST), max_tokens=4, repeats=2, warm_up=0)
    cells = [cell for cells in run_rounds(Noting(), schedule) for cell in cells]
    assert order == ["none:a", "p-eagle:a", "p-eagle:a", "none:a", "none:b", "p-eagle:b", "p-eagle:b", "none:b"]
    assert [cell.round for cell in cells] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_rounds_that_are_done_are_left_out() -> None:
    prompt_set = PromptSet(name="set", prompts=("a", "b", "c"))
    schedule = Schedule(prompt_sets=(prompt_set,), methods=(FAST,), max_tokens=4)
    lines: list[str] = []
    rounds = run_rounds(SteppingClient(), schedule, done={("set", 0), ("set", 2)}, report=lines.append)
    assert [[cell.round for cell in cells] for cells in rounds] == [[1]]
    assert lines == ["round 3 of 3"]
