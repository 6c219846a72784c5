"""How likely drafts are to be accepted, position by position, from what was accepted lately."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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
    """

    def __init__(self, num_positions: int, shared: AcceptanceRates | None = None) -> None:
        self._shared = shared
        self._memory = SHARED_MEMORY if shared is None else OWN_MEMORY
        self._tried = np.zeros(num_positions)
        self._kept = np.zeros(num_positions)

    def add(self, num_drafts: int, num_accepted: int) -> None:
        """Take the outcome of a verify step in."""
        self._tried *= self._memory
        self._kept *= self._memory
        # The draft after the last accepted one was refused; those behind it were never judged.
        self._tried[: min(num_drafts, num_accepted + 1)] += 1.0
        self._kept[:num_accepted] += 1.0
        if self._shared is not None:
            self._shared.add(num_drafts, num_accepted)

    def survival(self, num_drafts: int) -> NDArray[np.float64]:
        """[num_drafts] chance that the step accepts draft 0, 1, ...; never rises."""
        return np.cumprod(self._rates()[:num_drafts])

    def _rates(self) -> NDArray[np.float64]:
        if self._shared is None:
            prior: NDArray[np.float64] | float = UNKNOWN_RATE
            weight = UNKNOWN_WEIGHT
        else:
            prior, weight = self._shared._rates(), SHARED_WEIGHT
        rates: NDArray[np.float64] = (self._kept + weight * prior) / (self._tried + weight)
        return rates
