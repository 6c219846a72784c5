"""A method's figures, from its cells and its baseline's."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from peagle_trt.bench.cells import Cell, CellAnswer, Method
from peagle_trt.bench.spread import Percentiles, median_interval, percentiles_ms, quartiles

CONTEXT_EDGES = (0, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
"""Where the ranges of context length begin, in tokens present; the last has no end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextShare:
    """Steps at some context length.

    Attributes:
        from_tokens: Tokens present at the start of a step, at least.
        num_steps: How many steps.
        tokens_a_step: What they yielded, bonus counted.
    """

    from_tokens: int
    num_steps: int
    tokens_a_step: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A method's figures.

    Attributes:
        prompts: Set of prompts.
        method: The method.
        tokens_per_second: Answer tokens of all requests over the time it took; what failed adds none.
        tokens_per_second_per_user: Median over requests: tokens after the first over the time since the first.
        tokens_per_cpu_second: Answer tokens over CPU time of this process; None where others did the work.
        acceptance_length: Tokens a verify step yields, bonus counted, over all requests; None where nothing tells.
        acceptance_by_position: Share of verify steps whose draft at position 0..K-1 was accepted.
        acceptance_by_context: What steps yield by the tokens present; empty where pieces are no steps.
        time_to_first_token_ms: Median over requests; None where all failed.
        first_token_ms: Percentiles of the same.
        inter_token_ms: Time between two pieces of an answer; a piece holds what a step accepted.
        speedup: Over the baseline of the same concurrency; median over rounds of the ratio within a round. Rounds in
            which a request of either failed have no ratio: both did not do the same.
        speedup_low: Smallest of these ratios' middle half.
        speedup_high: Largest of these ratios' middle half.
        speedup_interval: 95 % interval of the median, by bootstrap over rounds; None of fewer than five rounds.
        speedup_cpu: The same speed-up in CPU time, which other programs of the machine hardly touch.
        speedup_cpu_interval: Its interval.
        num_rounds: Rounds measured.
        num_output_tokens: Answer tokens measured.
        num_failed: Requests without a whole answer.
        failures: How many of them for which reason.
        energy_joules_per_token: By meter; empty where none can be read.
        is_equal_to_baseline: Share of requests whose answer is the baseline's, token for token; greedy only.
    """

    prompts: str
    method: Method
    tokens_per_second: float
    tokens_per_second_per_user: float | None
    tokens_per_cpu_second: float | None
    acceptance_length: float | None
    acceptance_by_position: tuple[float, ...]
    acceptance_by_context: tuple[ContextShare, ...]
    time_to_first_token_ms: float | None
    first_token_ms: Percentiles | None
    inter_token_ms: Percentiles | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    speedup_interval: tuple[float, float] | None
    speedup_cpu: float | None
    speedup_cpu_interval: tuple[float, float] | None
    num_rounds: int
    num_output_tokens: int
    num_failed: int
    failures: dict[str, int]
    energy_joules_per_token: dict[str, float]
    is_equal_to_baseline: float | None


def summarise(cells: Sequence[Cell], methods: Sequence[Method], *, baseline: str, is_greedy: bool) -> list[Result]:
    """Figures of every method on every set of prompts.

    Args:
        cells: Of whole rounds.
        methods: In the order of the results. A method's baseline is the one of the baseline's name with the same
            concurrency and, unless that is "none", the same K; without one there is no speed-up.
        baseline: Name of what a speed-up is over.
        is_greedy: Answers of equal models are equal.
    """
    sets = dict.fromkeys(cell.prompts for cell in cells)
    by_method = {(prompts, method): _of(cells, prompts, method) for prompts in sets for method in methods}
    return [
        _summarise(
            prompts, method, by_method[prompts, method], _baseline(by_method, prompts, method, baseline), is_greedy
        )
        for prompts in sets
        for method in methods
    ]


def _of(cells: Sequence[Cell], prompts: str, method: Method) -> list[Cell]:
    return sorted(
        (cell for cell in cells if (cell.prompts, cell.method) == (prompts, method)), key=lambda cell: cell.round
    )


def _baseline(
    by_method: dict[tuple[str, Method], list[Cell]], prompts: str, method: Method, name: str
) -> list[Cell] | None:
    if method.name == name:
        return None
    draft_tokens = 0 if name == "none" else method.draft_tokens
    return by_method.get((prompts, Method(name=name, draft_tokens=draft_tokens, concurrency=method.concurrency)))


def _summarise(prompts: str, method: Method, cells: list[Cell], baseline: list[Cell] | None, is_greedy: bool) -> Result:
    answers = [answer for cell in cells for answer in cell.answers]
    num_tokens = sum(cell.num_tokens for cell in cells)
    length, by_position = _acceptance(method, answers)
    pairs = _comparable(cells, baseline)
    ratios, cpu_ratios = _ratios(pairs, in_cpu_time=False), _ratios(pairs, in_cpu_time=True)
    middle_half = quartiles(ratios) or (None, None)
    firsts = [answer.first_token_seconds for answer in answers]
    users = [rate for answer in answers if (rate := _user_rate(answer)) is not None]
    cpu_seconds = [cell.cpu_seconds for cell in cells if cell.cpu_seconds is not None]
    failures: Counter[str] = Counter()
    for cell in cells:
        failures.update(cell.failures)
    return Result(
        prompts=prompts,
        method=method,
        tokens_per_second=num_tokens / sum(cell.seconds for cell in cells),
        tokens_per_second_per_user=statistics.median(users) if users else None,
        tokens_per_cpu_second=num_tokens / sum(cpu_seconds) if any(cpu_seconds) else None,
        acceptance_length=length,
        acceptance_by_position=by_position,
        acceptance_by_context=_by_context(answers) if method.draft_tokens else (),
        time_to_first_token_ms=1e3 * statistics.median(firsts) if firsts else None,
        first_token_ms=percentiles_ms(firsts),
        inter_token_ms=percentiles_ms([gap for answer in answers for gap in _gaps(answer)]),
        speedup=statistics.median(ratios) if ratios else None,
        speedup_low=middle_half[0],
        speedup_high=middle_half[1],
        speedup_interval=median_interval(ratios),
        speedup_cpu=statistics.median(cpu_ratios) if cpu_ratios else None,
        speedup_cpu_interval=median_interval(cpu_ratios),
        num_rounds=len(cells),
        num_output_tokens=num_tokens,
        num_failed=failures.total(),
        failures=dict(failures),
        energy_joules_per_token=_energy(cells, num_tokens),
        is_equal_to_baseline=_share_equal(pairs) if ratios and is_greedy else None,
    )


def _acceptance(method: Method, answers: Sequence[CellAnswer]) -> tuple[float | None, tuple[float, ...]]:
    """Acceptance length and shares by position."""
    if not method.draft_tokens:
        return 1.0 if method.name == "none" else None, ()
    steps = sum(answer.num_verify_steps for answer in answers)
    if not steps:
        # A server that tells nothing, or a loop that never drafted.
        return (1.0 if any(answer.are_pieces_steps for answer in answers) else None), ()
    counts = [
        sum(answer.accepted_by_position[position] for answer in answers if position < len(answer.accepted_by_position))
        for position in range(method.draft_tokens)
    ]
    return 1.0 + sum(counts) / steps, tuple(count / steps for count in counts)


def _by_context(answers: Sequence[CellAnswer]) -> tuple[ContextShare, ...]:
    """The first piece comes from the prompt's pass, and the last may be cut short by the answer's end."""
    steps = dict.fromkeys(CONTEXT_EDGES, 0)
    tokens = dict.fromkeys(CONTEXT_EDGES, 0)
    for answer in answers:
        if not answer.are_pieces_steps:
            continue
        present = answer.num_prompt_tokens + sum(answer.piece_tokens[:1])
        for count in answer.piece_tokens[1:-1]:
            edge = max(edge for edge in CONTEXT_EDGES if edge <= present)
            steps[edge] += 1
            tokens[edge] += count
            present += count
    return tuple(
        ContextShare(from_tokens=edge, num_steps=steps[edge], tokens_a_step=tokens[edge] / steps[edge])
        for edge in CONTEXT_EDGES
        if steps[edge]
    )


def _gaps(answer: CellAnswer) -> list[float]:
    seconds = answer.piece_seconds
    return [later - earlier for earlier, later in itertools.pairwise(seconds)]


def _user_rate(answer: CellAnswer) -> float | None:
    """Tokens a second after the first piece."""
    if len(answer.piece_seconds) < 2:
        return None
    seconds = answer.piece_seconds[-1] - answer.piece_seconds[0]
    # A piece of a text holds we know not how many tokens; one is the usual.
    first = answer.piece_tokens[0] if answer.piece_tokens else 1
    return (answer.num_output_tokens - first) / seconds if seconds > 0 else None


def _rate(cell: Cell, seconds: float | None) -> float | None:
    return cell.num_tokens / seconds if seconds else None


def _comparable(cells: Sequence[Cell], baseline: Sequence[Cell] | None) -> list[tuple[Cell, Cell]]:
    """Rounds in which both answered everything."""
    if baseline is None:
        return []
    return [pair for pair in zip(cells, baseline, strict=True) if not pair[0].failures and not pair[1].failures]


def _ratios(pairs: Sequence[tuple[Cell, Cell]], *, in_cpu_time: bool) -> list[float]:
    """Tokens a second over the baseline's, round by round."""
    rates = [[_rate(cell, cell.cpu_seconds if in_cpu_time else cell.seconds) for cell in pair] for pair in pairs]
    return [rate / base for rate, base in rates if rate is not None and base]


def _energy(cells: Sequence[Cell], num_tokens: int) -> dict[str, float]:
    # A call that went on with a run may have had other meters than the one that began it.
    meters = [name for name in cells[0].energy_joules if all(name in cell.energy_joules for cell in cells)]
    return {name: sum(cell.energy_joules[name] for cell in cells) / max(1, num_tokens) for name in meters}


def _share_equal(rounds: Sequence[tuple[Cell, Cell]]) -> float:
    pairs = [pair for cell, other in rounds for pair in zip(cell.answers, other.answers, strict=True)]
    return sum(answer.digest == other.digest for answer, other in pairs) / len(pairs)
