"""Measures methods against a baseline in one run, interleaved, so that a drifting machine touches all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from peagle_trt.bench.clients import Client, ClientAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way to decode.

    Attributes:
        name: "p-eagle", "eagle3" or "none".
        draft_tokens: K; 0 for "none".
        concurrency: Requests kept in flight.
    """

    name: str
    draft_tokens: int
    concurrency: int


@dataclass(slots=True, kw_only=True)
class Tally:
    """What a method has done so far."""

    answers: list[ClientAnswer] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def add(self, answers: Sequence[ClientAnswer], seconds: float) -> None:
        """Take one round in."""
        self.answers.extend(answers)
        self.seconds.append(seconds)
        self.tokens.append(sum(answer.num_output_tokens for answer in answers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A method's figures.

    Attributes:
        method: The method.
        tokens_per_second: Answer tokens of all requests over the time it took.
        acceptance_length: Tokens a verify step yields, bonus counted, over all requests.
        acceptance_by_position: Share of verify steps whose draft at position 0..K-1 was accepted.
        time_to_first_token_ms: Median over requests.
        speedup: Over the baseline of the same concurrency; median over rounds of the ratio within a round.
        speedup_low: Smallest of these ratios' middle half.
        speedup_high: Largest of these ratios' middle half.
        num_output_tokens: Answer tokens measured.
        is_equal_to_baseline: Share of requests whose answer is the baseline's, token for token; greedy only.
    """

    method: Method
    tokens_per_second: float
    acceptance_length: float
    acceptance_by_position: tuple[float, ...]
    time_to_first_token_ms: float
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    num_output_tokens: int
    is_equal_to_baseline: float | None


def measure(
    client: Client,
    prompts: Sequence[str],
    methods: Sequence[Method],
    *,
    max_tokens: int,
    baseline: str = "none",
    report: Callable[[str], None] = lambda line: None,
) -> list[Result]:
    """Run every method over the prompts, a batch of prompts at a time.

    Args:
        client: What answers.
        prompts: User turns.
        methods: Methods. A method's baseline is the one of the baseline's name with the same concurrency and, unless
            that is "none", the same K; without one there is no speed-up.
        max_tokens: Longest answer.
        baseline: Name of what a speed-up is over.
        report: Told of every round.
    """
    for each in {method.name: method for method in reversed(methods)}.values():
        # Graphs are loaded when they are first needed.
        client.answer(prompts[:1], each, min(max_tokens, 16))
    tallies = {method: Tally() for method in methods}
    width = max(method.concurrency for method in methods)
    rounds = range(0, len(prompts), width)
    for number, first in enumerate(rounds, start=1):
        for method in methods:
            started = time.perf_counter()
            answers = client.answer(prompts[first : first + width], method, max_tokens)
            tallies[method].add(answers, time.perf_counter() - started)
        report(f"round {number} of {len(rounds)}")
    return [_summarise(method, tally, _baseline(tallies, method, baseline)) for method, tally in tallies.items()]


def _baseline(tallies: dict[Method, Tally], method: Method, name: str) -> Tally | None:
    if method.name == name:
        return None
    draft_tokens = 0 if name == "none" else method.draft_tokens
    return tallies.get(Method(name=name, draft_tokens=draft_tokens, concurrency=method.concurrency))


def _summarise(method: Method, tally: Tally, baseline: Tally | None) -> Result:
    steps = sum(answer.num_verify_steps for answer in tally.answers)
    by_position = [
        sum(
            answer.accepted_by_position[position]
            for answer in tally.answers
            if position < len(answer.accepted_by_position)
        )
        for position in range(method.draft_tokens)
    ]
    ratios = _ratios(tally, baseline) if baseline is not None else []
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [None, None, None]
    return Result(
        method=method,
        tokens_per_second=sum(tally.tokens) / sum(tally.seconds),
        acceptance_length=1.0 + sum(by_position) / steps if steps else 1.0,
        acceptance_by_position=tuple(count / steps for count in by_position) if steps else (),
        time_to_first_token_ms=1e3 * statistics.median(answer.time_to_first_token_seconds for answer in tally.answers),
        speedup=statistics.median(ratios) if ratios else None,
        speedup_low=quartiles[0],
        speedup_high=quartiles[2],
        num_output_tokens=sum(tally.tokens),
        is_equal_to_baseline=_share_equal(tally, baseline) if ratios else None,
    )


def _ratios(tally: Tally, baseline: Tally) -> list[float]:
    """Tokens a second over the baseline's, round by round."""
    rows = zip(tally.tokens, tally.seconds, baseline.tokens, baseline.seconds, strict=True)
    return [(tokens / seconds) / (base / base_seconds) for tokens, seconds, base, base_seconds in rows if base]


def _share_equal(tally: Tally, baseline: Tally | None) -> float | None:
    if baseline is None:
        return None
    pairs = list(zip(tally.answers, baseline.answers, strict=True))
    return sum(answer.token_ids == other.token_ids for answer, other in pairs) / len(pairs)
