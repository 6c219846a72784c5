"""Log probabilities of an answer's tokens.

Letters: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from peagle_trt.decode.request import TokenLogProb

MAX_TOP_LOG_PROBS = 20
"""Likeliest tokens that a request may ask for. Source: OpenAI's API reference, `top_logprobs`."""


def log_probs_of(logits: NDArray[np.float32], token_ids: Sequence[int], *, num_top: int) -> list[TokenLogProb]:
    """How likely tokens were.

    A row of a verify step follows the drafts before it, so the row of an accepted draft, of a bonus and of a
    replacement is the one that a step without drafts would have had.

    Args:
        logits: [n, V] float32, n at least the number of tokens; row i says what comes in the place of token i.
        token_ids: The tokens.
        num_top: Likeliest tokens wanted for each.
    """
    return [_log_prob(row_V, token_id, num_top) for row_V, token_id in zip(logits, token_ids, strict=False)]


def _log_prob(logits_V: NDArray[np.float32], token_id: int, num_top: int) -> TokenLogProb:
    exact_V = logits_V.astype(np.float64)
    exact_V -= exact_V.max()
    exact_V -= np.log(np.exp(exact_V).sum())
    return TokenLogProb(log_prob=float(exact_V[token_id]), top=_top(exact_V, num_top))


def _top(log_probs_V: NDArray[np.float64], count: int) -> tuple[tuple[int, float], ...]:
    if count == 0:
        return ()
    count = min(count, len(log_probs_V))
    edge = np.partition(log_probs_V, -count)[-count]
    # Of tokens tied at the edge those with the lowest ids, as argmax takes them.
    found = np.flatnonzero(log_probs_V >= edge)
    best = found[np.argsort(-log_probs_V[found], kind="stable")][:count]
    return tuple((int(token_id), float(log_probs_V[token_id])) for token_id in best)
