"""How likely drafts are to be accepted, position by position, from what was accepted lately."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peagle_trt.decode.confidence import Calibration

UNKNOWN_RATE = 0.6
"""Chance of a draft before anything was seen; a head worth serving does better at the first position."""
UNKNOWN_WEIGHT = 4.0
"""Steps that this guess counts for."""
SHARED_WEIGHT = 8.0
"""Steps that the average of all requests counts for beside a request's own."""
SHARED_MEMORY = 0.998
"""What is left of a step of any request after the next one: about 500 count."""
OWN_MEMORY = 0.97
"""What is left of a request's step after its next one: about 30 count, since texts change."""


class AcceptanceRates:
    """Chance of each draft given that those before it were accepted.

    Args:
        num_positions: K at most.
        shared: Rates of all requests, which a new request starts from; None for these rates themselves.

    Attributes:
        calibration: What the drafter's own probabilities are worth.
    """

    def __init__(self, num_positions: int, shared: AcceptanceRates | None = None) -> None:
        self._shared = shared
        self._memory = SHARED_MEMORY if shared is None else OWN_MEMORY
        self._tried = np.zeros(num_positions)
        self._kept = np.zeros(num_positions)
        self.calibration: Calibration = Calibration(shared.calibration if shared is not None else None)

    def add(self, num_drafts: int, num_accepted: int, promised_K: NDArray[np.float64] | None = None) -> None:
        """Take the outcome of a verify step in.

        Args:
            num_drafts: Drafts that were verified.
            num_accepted: Drafts that were accepted.
            promised_K: The drafter's confidence in every draft it made; None where none was cut for it.
        """
        cut_chances = np.zeros(0)
        if promised_K is not None:
            cut_chances = self.calibration.chances(promised_K)[num_drafts:]
            self.calibration.add(promised_K, num_drafts, num_accepted)
        self._count(num_drafts, num_accepted, cut_chances)

    def survival(self, num_drafts: int) -> NDArray[np.float64]:
        """[num_drafts] chance that the step accepts draft 0, 1, ...; never rises."""
        return np.cumprod(self._rates()[:num_drafts])

    def _count(self, num_drafts: int, num_accepted: int, cut_chances: NDArray[np.float64]) -> None:
        self._tried *= self._memory
        self._kept *= self._memory
        # The draft after the last accepted one was refused; those behind it were never judged.
        self._tried[: min(num_drafts, num_accepted + 1)] += 1.0
        self._kept[:num_accepted] += 1.0
        if num_accepted == num_drafts:
            # The unlikely drafts are the ones that are cut: left out, they would make the others look like all.
            cut = slice(num_drafts, num_drafts + len(cut_chances))
            reached = np.cumprod(np.concatenate([[1.0], cut_chances]))
            self._tried[cut] += reached[:-1]
            self._kept[cut] += reached[1:]
        if self._shared is not None:
            self._shared._count(num_drafts, num_accepted, cut_chances)

    def _rates(self) -> NDArray[np.float64]:
        if self._shared is None:
            prior: NDArray[np.float64] | float = UNKNOWN_RATE
            weight = UNKNOWN_WEIGHT
        else:
            prior, weight = self._shared._rates(), SHARED_WEIGHT
        rates: NDArray[np.float64] = (self._kept + weight * prior) / (self._tried + weight)
        return rates
