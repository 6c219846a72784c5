"""Chooses K for every request at every step: as many drafts as pay for themselves, none where speculation loses.

A draft is worth the chance that it is accepted; it costs a row of the target and its share of the drafter's pass. Both
are learned while decoding, so the same build speculates alone on a machine and stops where many requests fill it. Once
drafts are made, the drafter's own confidence says more about each of them than any average: what is not worth its row
is then cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from peagle_trt.decode.acceptance_rates import AcceptanceRates
from peagle_trt.decode.prompt_lookup import LookupExperience
from peagle_trt.decode.step_costs import CostCurve, StepCosts, magnitude

NUM_FIRST_STEPS = 3
"""Steps of each kind, with drafts and without, before the first choice between them."""
PROBE_PERIOD = 128
"""Steps of one kind after which one of the other kind is tried, so that what is known stays true."""
NUM_PROBED = 2
"""Sequences that try drafts where speculation is off."""
GAIN_TO_START = 1.05
"""What speculation must promise to be switched on; it goes off below 1. Noise must not switch it back and forth."""

SPARE_DRAFTS = 1
"""Drafts made beyond those that pay on average, where the ones that do not can still be cut: the drafter's pass is
cheap beside the target's, and some contexts are easy."""

MIN_PROMPT_ROWS = 8
"""Rows of prompts that every step reads, whatever they cost: a newcomer must not wait for ever."""
PROMPT_SHARE = 0.35
"""What prompts may add to a step, as a share of it: running answers get their next token within twice the usual time,
with room for the drafter's reading of the prompt."""
EXPLORED_PROMPT_ROWS = 32
"""Rows of prompts that a step reads while passes of one size at most were measured. One size says nothing of what a row
costs, and steps that read little would never find out that they could read more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftWish:
    """A running answer that could use drafts.

    Attributes:
        max_drafts: Most that make sense, at least 1.
        rates: Its acceptance; None takes `max_drafts` whatever they cost.
        num_unread: Rows its drafter has to read first.
        can_cut: Whether drafts may be cut once they are made.
    """

    max_drafts: int
    rates: AcceptanceRates | None
    num_unread: int
    can_cut: bool = False


@dataclass(slots=True)
class _Load:
    """What is known about one magnitude of running answers."""

    is_on: bool = True
    num_plain: int = 0
    num_drafting: int = 0
    since_plain: int = 0
    since_drafting: int = 0


@dataclass(slots=True)
class SpeculationController:
    """Shared by all requests of an engine; what it learned outlives a loop.

    Attributes:
        num_positions: Largest K.
        costs: What passes cost.
        rates: Acceptance over all requests that verify the head's drafts alone.
        mixed_rates: The same over requests whose drafts may give way to copies, which are accepted more often.
        lookups: What copied drafts were worth, over all requests.
        is_off: Whether the last choice was to draft for nobody.
    """

    num_positions: int
    costs: StepCosts = field(default_factory=StepCosts)
    rates: AcceptanceRates = field(init=False)
    mixed_rates: AcceptanceRates = field(init=False)
    lookups: LookupExperience = field(default_factory=LookupExperience)
    is_off: bool = False
    _loads: dict[int, _Load] = field(default_factory=dict)
    _drafter_seconds: float = 0.0
    _is_trial: bool = False

    def __post_init__(self) -> None:
        self.rates = AcceptanceRates(self.num_positions)
        self.mixed_rates = AcceptanceRates(self.num_positions)

    def new_rates(self, *, prompt_lookup: bool = False) -> AcceptanceRates:
        """Rates for a new request, which begin with those of its kind."""
        return AcceptanceRates(self.num_positions, self.mixed_rates if prompt_lookup else self.rates)

    def add_target_pass(self, *, num_sequences: int, num_rows: int, num_drafts: int, seconds: float) -> None:
        """Learn from a target pass.

        Args:
            num_sequences: Running answers in it; prompts do not count.
            num_rows: All its rows, those of prompts included.
            num_drafts: Drafts among them.
            seconds: What it took, verification included.
        """
        self.costs.add(self.costs.target(num_sequences), num_rows, seconds)
        load = self._load(num_sequences)
        if num_drafts:
            load.num_drafting, load.since_drafting = load.num_drafting + 1, 0
            load.since_plain += 1
        else:
            load.num_plain, load.since_plain = load.num_plain + 1, 0
            load.since_drafting += 1

    def add_drafter_pass(self, *, num_sequences: int, num_rows: int, seconds: float) -> None:
        """Learn from a drafter pass that all of `num_sequences` shared; `num_rows` counts padding and masks."""
        curve = self.costs.drafter(num_sequences)
        self.costs.add(curve, num_rows, seconds)
        self._drafter_seconds = float(curve.predict(np.array([num_rows]))[0])

    def prompt_rows(self, *, num_sequences: int, num_rows: int, max_rows: int) -> int:
        """Rows of prompts that a step can read without making running answers wait much longer.

        Args:
            num_sequences: Running answers.
            num_rows: Rows of theirs.
            max_rows: Most that may be read in any case.
        """
        curve = self.costs.target(num_sequences)
        if max_rows <= MIN_PROMPT_ROWS:
            return max_rows
        if curve.num_sizes < 2:
            return min(EXPLORED_PROMPT_ROWS, max_rows)
        choices = np.arange(MIN_PROMPT_ROWS, max_rows + 1)
        seconds = curve.predict(num_rows + choices)
        alone = curve.least(num_rows)
        limit = alone + PROMPT_SHARE * (alone + self._drafter_seconds)
        return MIN_PROMPT_ROWS + max(0, int((seconds <= limit).sum()) - 1)

    def choose(self, wishes: Sequence[DraftWish], *, num_sequences: int, other_rows: int) -> list[int]:
        """K for every wish, for the coming step.

        Args:
            wishes: Running answers that could use drafts.
            num_sequences: Running answers in all.
            other_rows: Rows of prompts that will probably share the step.
        """
        counts = [wish.max_drafts if wish.rates is None else 0 for wish in wishes]
        adaptive = [index for index, wish in enumerate(wishes) if wish.rates is not None]
        if adaptive:
            load = self._load(num_sequences)
            drafted = self._choose(
                [wishes[index] for index in adaptive], load, num_sequences, num_sequences + other_rows + sum(counts)
            )
            for index, count in zip(adaptive, drafted, strict=True):
                counts[index] = count
        self.is_off = not any(counts)
        if self.is_off:
            self._drafter_seconds = 0.0
        return counts

    def cut(self, chances: Sequence[NDArray[np.float64]], *, num_sequences: int, base_rows: int) -> list[int]:
        """How many of the drafts that were just made are worth verifying.

        Args:
            chances: For every answer that may be cut, the chance of each draft given that those before it stand.
            num_sequences: Running answers.
            base_rows: Rows of the coming step without these drafts.
        """
        if self._is_trial:
            # It is there to learn from drafts; cut away, it would be tried again at every step.
            return [len(each) for each in chances]
        drafts = _by_worth([np.cumprod(each) for each in chances])
        seconds = self.costs.target(num_sequences).trend(base_rows + np.arange(len(drafts.worth) + 1))
        tokens = num_sequences + np.concatenate([[0.0], np.cumsum(drafts.worth)])
        best = int((tokens / (seconds + self._drafter_seconds)).argmax())
        return drafts.counts(best, len(chances))

    def _choose(self, wishes: Sequence[DraftWish], load: _Load, num_sequences: int, base_rows: int) -> list[int]:
        every, none = [wish.max_drafts for wish in wishes], [0] * len(wishes)
        is_new = load.num_drafting < NUM_FIRST_STEPS
        self._is_trial = is_new or load.num_plain < NUM_FIRST_STEPS or load.since_drafting >= PROBE_PERIOD
        if is_new:
            return every
        if load.num_plain < NUM_FIRST_STEPS or load.since_plain >= PROBE_PERIOD:
            return none
        if load.since_drafting >= PROBE_PERIOD:
            return _probe(wishes)
        counts, gain = self._best(wishes, num_sequences, base_rows)
        load.is_on = gain >= (1.0 if load.is_on else GAIN_TO_START)
        return counts if load.is_on else none

    def _best(self, wishes: Sequence[DraftWish], num_sequences: int, base_rows: int) -> tuple[list[int], float]:
        """The drafts that give the most tokens a second, and how many times those of a step without drafts."""
        drafts = _by_worth([wish.rates.survival(wish.max_drafts) for wish in wishes if wish.rates is not None])
        tokens = num_sequences + np.cumsum(drafts.worth)
        plain_seconds, *seconds = self.costs.target(num_sequences).trend(base_rows + np.arange(len(drafts.worth) + 1))
        rates = tokens / (seconds + self._draft_seconds(drafts.slots))
        best = int(rates.argmax())
        plain = num_sequences / float(plain_seconds)
        counts = [
            min(count + SPARE_DRAFTS, wish.max_drafts) if count and wish.can_cut else count
            for count, wish in zip(drafts.counts(best + 1, len(wishes)), wishes, strict=True)
        ]
        return counts, float(rates[best]) / plain

    def _draft_seconds(self, slots: NDArray[np.int64]) -> NDArray[np.float64]:
        """[N] cost of the drafter's pass that makes the first 1, 2, ... N drafts of the order.

        A pass is as wide as its longest member needs: K + 1 rows carried over and K - 1 masks.
        """
        num_sequences = np.cumsum(slots == 1)
        rows = num_sequences * 2 * np.maximum.accumulate(slots)
        magnitudes = np.ceil(np.log2(num_sequences)).astype(np.int64)
        seconds = np.zeros(len(slots))
        for each in np.unique(magnitudes).tolist():
            chosen = magnitudes == each
            curve = self._drafter_curve(each)
            if not curve.is_empty:
                seconds[chosen] = curve.predict(rows[chosen])
        return seconds

    def _drafter_curve(self, own: int) -> CostCurve:
        """The curve of a magnitude, or where nothing was measured that of the next larger one, or else smaller one."""
        known = self.costs.known_drafters()
        at_least = [each for each in known if each >= own]
        chosen = min(at_least) if at_least else max(known, default=own)
        return self.costs.drafter(2**chosen)

    def _load(self, num_sequences: int) -> _Load:
        return self._loads.setdefault(magnitude(num_sequences), _Load())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """Drafts of several answers, the likeliest to be accepted first.

    Attributes:
        owners: [N] answer of each.
        slots: [N] its place in the answer's drafts, from 1.
        worth: [N] its chance; those of an answer never rise, so the first n are always whole heads of answers.
    """

    owners: NDArray[np.int64]
    slots: NDArray[np.int64]
    worth: NDArray[np.float64]

    def counts(self, num_drafts: int, num_answers: int) -> list[int]:
        """How many of the first `num_drafts` are each answer's."""
        found: list[int] = np.bincount(self.owners[:num_drafts], minlength=num_answers).tolist()
        return found


def _by_worth(survival: Sequence[NDArray[np.float64]]) -> _Order:
    worth = np.concatenate(survival)
    order = np.argsort(-worth, kind="stable")
    owners = np.repeat(np.arange(len(survival)), [len(each) for each in survival])
    slots = np.concatenate([np.arange(1, len(each) + 1) for each in survival])
    return _Order(owners=owners[order], slots=slots[order], worth=worth[order])


def _probe(wishes: Sequence[DraftWish]) -> list[int]:
    """Drafts for the few whose drafter has the least to catch up with."""
    order = sorted(range(len(wishes)), key=lambda index: wishes[index].num_unread)
    chosen = set(order[:NUM_PROBED])
    return [wish.max_drafts if index in chosen else 0 for index, wish in enumerate(wishes)]
