"""Measures methods in turns, round by round, so that a drifting machine touches all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from peagle_trt.bench.cells import Cell, Method, count_failures, keep_answers
from peagle_trt.bench.clients import Client
from peagle_trt.bench.energy import Meter, joules_between, read_all
from peagle_trt.bench.prompt_sets import PromptSet
from peagle_trt.bench.summary import Result, summarise
from peagle_trt.errors import PeagleError

__all__ = ["Method", "Result", "Schedule", "measure", "run_rounds", "summarise"]

WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What is to be measured.

    Attributes:
        prompt_sets: Sets of prompts.
        methods: Methods.
        max_tokens: Longest answer.
        repeats: How often every batch of prompts is answered by every method.
        warm_up: Prompts that every kind of method answers before the clock runs.
        round_prompts: Prompts of a round; None for the largest number of requests in flight.
    """

    prompt_sets: tuple[PromptSet, ...]
    methods: tuple[Method, ...]
    max_tokens: int
    repeats: int = 1
    warm_up: int = 1
    round_prompts: int | None = None

    @property
    def width(self) -> int:
        """Prompts of a round."""
        return self.round_prompts or self.max_concurrency

    @property
    def max_concurrency(self) -> int:
        """Largest number of requests in flight."""
        return max(method.concurrency for method in self.methods)

    def rounds(self, prompt_set: PromptSet) -> range:
        """Numbers of a set's rounds."""
        return range(self.repeats * -(-len(prompt_set.prompts) // self.width))

    def batch(self, prompt_set: PromptSet, number: int) -> tuple[str, ...]:
        """Prompts of a round; repetitions follow one another."""
        first = number // self.repeats * self.width
        return prompt_set.prompts[first : first + self.width]


def measure(
    client: Client,
    prompts: Sequence[str],
    methods: Sequence[Method],
    *,
    max_tokens: int,
    baseline: str = "none",
    report: Callable[[str], None] = lambda line: None,
) -> list[Result]:
    """Run every method once over one set of prompts and sum up.

    Args:
        client: What answers.
        prompts: User turns.
        methods: Methods.
        max_tokens: Longest answer.
        baseline: Name of what a speed-up is over.
        report: Told of every round.
    """
    prompt_set = PromptSet(name="prompts", prompts=tuple(prompts))
    schedule = Schedule(prompt_sets=(prompt_set,), methods=tuple(methods), max_tokens=max_tokens)
    cells = [cell for cells in run_rounds(client, schedule, report=report) for cell in cells]
    return summarise(cells, methods, baseline=baseline, is_greedy=True)


def run_rounds(
    client: Client,
    schedule: Schedule,
    *,
    meters: tuple[Meter, ...] = (),
    done: Collection[tuple[str, int]] = (),
    report: Callable[[str], None] = lambda line: None,
) -> Iterator[list[Cell]]:
    """Cells of one round after the other.

    Args:
        client: What answers.
        schedule: What is to be measured.
        meters: Read around every cell.
        done: Sets of prompts and rounds that need not be measured again.
        report: Told of every round.
    """
    left = [(each, number) for each in schedule.prompt_sets for number in schedule.rounds(each)]
    total = len(left)
    left = [(each, number) for each, number in left if (each.name, number) not in done]
    if not left:
        return
    _warm_up(client, schedule)
    for index, (prompt_set, number) in enumerate(left, start=total - len(left) + 1):
        prompts = schedule.batch(prompt_set, number)
        # Who goes first changes: what one leaves in the caches must not always fall to the same other.
        turn = number % len(schedule.methods)
        order = schedule.methods[turn:] + schedule.methods[:turn]
        cells = [_measure_cell(client, schedule, prompt_set.name, number, prompts, method, meters) for method in order]
        yield cells
        report(f"round {index} of {total}{_failed(cells)}")


def _warm_up(client: Client, schedule: Schedule) -> None:
    """Graphs are loaded, and memory is taken, when they are first needed."""
    prompts = schedule.prompt_sets[0].prompts[: schedule.warm_up]
    if not prompts:
        return
    for each in {method.name: method for method in reversed(schedule.methods)}.values():
        for answer in client.answer(prompts, each, min(schedule.max_tokens, WARM_UP_TOKENS)):
            if answer.failure is not None:
                raise PeagleError(f"a request before the measurement failed: {answer.failure}")


def _failed(cells: Sequence[Cell]) -> str:
    reasons = {reason: None for cell in cells for reason in cell.failures}
    count = sum(sum(cell.failures.values()) for cell in cells)
    return f"; {count} requests failed: {'; '.join(reasons)}" if count else ""


def _measure_cell(
    client: Client,
    schedule: Schedule,
    prompts_name: str,
    number: int,
    prompts: Sequence[str],
    method: Method,
    meters: tuple[Meter, ...],
) -> Cell:
    before, started, cpu_started = read_all(meters), time.perf_counter(), time.process_time()
    answers = client.answer(prompts, method, schedule.max_tokens)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    return Cell(
        prompts=prompts_name,
        round=number,
        method=method,
        seconds=seconds,
        cpu_seconds=cpu_seconds if client.is_local else None,
        energy_joules=joules_between(meters, before, read_all(meters)),
        answers=keep_answers(answers),
        failures=count_failures(answers),
    )
