"""How sure a drafter is of what it drafted, and how far that can be believed.

A draft that the drafter itself finds unlikely is rarely accepted, but its row costs the target as much as any other.
The probability says so before the target runs: SmolLM2-135M's head, on HumanEval, has one in eight of its drafts of
probability 0.1 to 0.2 accepted, and nineteen in twenty of those above 0.9.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peagle_trt.engine.protocol import DraftOutput

UNKNOWN_WEIGHT = 4.0
"""Accepted drafts that the guess "as often as promised" counts for, before anything was seen."""
SHARED_WEIGHT = 8.0
"""Accepted drafts that the experience of all requests counts for beside a request's own."""
SHARED_MEMORY = 0.998
OWN_MEMORY = 0.97
"""What is left of a step after the next one; as in `acceptance_rates`."""


def slot_confidence(output: DraftOutput, index: int) -> NDArray[np.float64]:
    """[K] largest probability of each slot of a sequence, at temperature 1.

    It is the slot's, not that of a draft that was drawn from it: to verify a drawn draft only when it is a likely one
    would change what is drawn, and with it the answers' distribution.

    Args:
        output: Of a parallel head, whose slots do not depend on each other's drafts.
        index: Sequence of the pass.
    """
    if output.candidates is not None:
        return output.candidates.probabilities[index, :, 0].astype(np.float64)
    assert output.logits is not None, "an engine gives candidates or logits"
    logits_KD = output.logits[index]
    largest_K1 = logits_KD.max(axis=-1, keepdims=True)
    total_K: NDArray[np.float64] = np.exp(logits_KD - largest_K1).sum(axis=-1, dtype=np.float64)
    return 1.0 / total_K


class Calibration:
    """What a promised acceptance is worth: a drafter may be too sure of itself, or a request's sampling hot.

    Args:
        shared: Experience of all requests, which a new request starts from; None for that experience itself.
    """

    def __init__(self, shared: Calibration | None = None) -> None:
        self._shared = shared
        self._memory = SHARED_MEMORY if shared is None else OWN_MEMORY
        self._promised = self._kept = 0.0

    def add(self, promised_K: NDArray[np.float64], num_drafts: int, num_accepted: int) -> None:
        """Take the outcome of a verify step in.

        Args:
            promised_K: Confidence of every slot, those that were cut included.
            num_drafts: Drafts that were verified.
            num_accepted: Drafts that were accepted.
        """
        # The draft after the last accepted one was refused; those behind it were never judged.
        num_judged = min(num_drafts, num_accepted + 1)
        self._promised = self._memory * self._promised + float(promised_K[:num_judged].sum())
        self._kept = self._memory * self._kept + min(num_accepted, num_drafts)
        if self._shared is not None:
            self._shared.add(promised_K, num_drafts, num_accepted)

    def chances(self, promised_K: NDArray[np.float64]) -> NDArray[np.float64]:
        """[K] chance of each draft given that those before it were accepted."""
        return np.minimum(self._ratio() * promised_K, 1.0)

    def _ratio(self) -> float:
        prior, weight = (1.0, UNKNOWN_WEIGHT) if self._shared is None else (self._shared._ratio(), SHARED_WEIGHT)
        return (self._kept + weight * prior) / (self._promised + weight)
