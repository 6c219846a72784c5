"""The choice of K at every load: predicted by the model, settled by measuring those that could be best."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from peagle_trt.tuning.acceptance import Traffic
from peagle_trt.tuning.passes import PassKind

CLOSE = 0.9
"""Share of the best predicted rate from which on a K is measured; the model misses passes by up to 10 % on a CPU."""
MAX_CANDIDATES = 5
"""Values of K that are measured at a load, plain decoding aside."""
TIE = 0.01
"""Share of the best measured rate within which the smaller K is taken: it needs less of a machine that is shared."""

Seconds = Callable[[PassKind], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One K at one load.

    Attributes:
        batch_size: Requests in flight.
        draft_tokens: K; 0 for plain decoding.
        tokens_a_step: What a step yields for a request, bonus counted.
        predicted: Tokens a second by the model.
        measured: Tokens a second from measured passes, or None where they were not measured.
        verify_seconds: The target's pass, measured or else predicted.
        draft_seconds: The drafter's.
    """

    batch_size: int
    draft_tokens: int
    tokens_a_step: float
    predicted: float
    measured: float | None
    verify_seconds: float
    draft_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is best at one load.

    Attributes:
        best: The chosen K.
        plain: Plain decoding.
        candidates: All K, by K.
    """

    best: Candidate
    plain: Candidate
    candidates: tuple[Candidate, ...]

    @property
    def speedup(self) -> float:
        """Over plain decoding."""
        assert self.best.measured is not None and self.plain.measured is not None
        return self.best.measured / self.plain.measured


def passes_of(batch_size: int, draft_tokens: int) -> tuple[PassKind, ...]:
    """Passes of a step."""
    verify = PassKind(model="target", draft_tokens=draft_tokens, batch_size=batch_size)
    if draft_tokens == 0:
        return (verify,)
    return verify, PassKind(model="drafter", draft_tokens=draft_tokens, batch_size=batch_size)


def anchors(loads: Sequence[int], max_draft_tokens: int) -> list[PassKind]:
    """Passes that the model is fitted to: the corners of what is asked, and the middle of K."""
    middle = (max_draft_tokens + 1) // 2
    counts = sorted({1, middle, max_draft_tokens})
    corners = sorted({min(loads), max(loads)})
    kinds = [kind for load in corners for count in (0, *counts) for kind in passes_of(load, count)]
    return list(dict.fromkeys(kinds))


def rate(traffic: Traffic, batch_size: int, draft_tokens: int, seconds: Seconds) -> float:
    """Tokens a second of all requests together, where a new one comes for each that ends.

    An answer costs the reading of its prompt, by the drafter too where there are drafts, and its share of steps.
    """
    step = sum(seconds(kind) for kind in passes_of(batch_size, draft_tokens))
    reading = traffic.prompt_seconds + (traffic.drafter_prompt_seconds if draft_tokens else 0.0)
    # The first token comes with the prompt.
    num_steps = max(0.0, traffic.output_tokens - 1) / traffic.acceptance.length(draft_tokens)
    return traffic.output_tokens / (reading + num_steps * (step / batch_size + traffic.loop_seconds))


def shortlist(traffic: Traffic, batch_size: int, seconds: Seconds) -> list[int]:
    """K that could be best at a load, plain decoding among them."""
    predicted = {
        count: rate(traffic, batch_size, count, seconds) for count in range(traffic.acceptance.max_draft_tokens + 1)
    }
    top = max(predicted.values())
    drafting = [count for count, value in predicted.items() if count and value >= CLOSE * top]
    # Where plain decoding is far ahead, the K nearest to it is still worth a look.
    drafting = drafting or [max((count for count in predicted if count), key=lambda count: predicted[count])]
    best_first = sorted(drafting, key=lambda count: -predicted[count])[:MAX_CANDIDATES]
    return [0, *sorted(best_first)]


def choose(traffic: Traffic, batch_size: int, predicted: Seconds, measured: Mapping[PassKind, float]) -> Choice:
    """The best K of those whose passes were measured.

    Args:
        traffic: What requests are like.
        batch_size: Requests in flight.
        predicted: Seconds of a pass by the model.
        measured: Seconds of passes that were measured, of plain decoding at least.
    """
    candidates = tuple(
        _candidate(traffic, batch_size, count, predicted, measured)
        for count in range(traffic.acceptance.max_draft_tokens + 1)
    )
    known = {item.draft_tokens: item.measured for item in candidates if item.measured is not None}
    top = max(known.values())
    best = min(count for count, value in known.items() if value >= (1 - TIE) * top)
    return Choice(best=candidates[best], plain=candidates[0], candidates=candidates)


def _candidate(
    traffic: Traffic, batch_size: int, count: int, predicted: Seconds, measured: Mapping[PassKind, float]
) -> Candidate:
    kinds = passes_of(batch_size, count)
    is_measured = all(kind in measured for kind in kinds)
    seconds = [measured[kind] if is_measured else predicted(kind) for kind in kinds]
    return Candidate(
        batch_size=batch_size,
        draft_tokens=count,
        tokens_a_step=traffic.acceptance.length(count),
        predicted=rate(traffic, batch_size, count, predicted),
        measured=rate(traffic, batch_size, count, measured.__getitem__) if is_measured else None,
        verify_seconds=seconds[0],
        draft_seconds=sum(seconds[1:]),
    )


def as_schedule(choices: Sequence[Choice]) -> tuple[tuple[int, int], ...]:
    """Loads and their K, neighbours of one K as one pair."""
    pairs: list[tuple[int, int]] = []
    for choice in sorted(choices, key=lambda each: each.best.batch_size):
        load, count = choice.best.batch_size, choice.best.draft_tokens
        if pairs and pairs[-1][1] == count:
            pairs.pop()
        pairs.append((load, count))
    return tuple(pairs)
