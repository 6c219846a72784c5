"""From the target's logits to the distribution a token is drawn from.

Letters: V vocabulary.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from peagle_trt.decode.guide import GuideBars
from peagle_trt.decode.request import SamplingSettings
from peagle_trt.errors import RequestError

MAX_BIAS = 1e4
"""Largest that may be added to a logit or taken from it; beyond it float32 keeps little of the logit itself."""


def check_sampling(settings: SamplingSettings) -> None:
    """Refuse settings without a meaning.

    Raises:
        RequestError: A value is outside its range.
    """
    ranges = (
        ("temperature", settings.temperature, 0.0, 100.0),
        ("top_k", settings.top_k, 0, 2**31 - 1),
        ("repetition_penalty", settings.repetition_penalty, 1e-3, 1e3),
        ("frequency_penalty", settings.frequency_penalty, -100.0, 100.0),
        ("presence_penalty", settings.presence_penalty, -100.0, 100.0),
        ("min_tokens", settings.min_tokens, 0, 2**31 - 1),
    )
    for name, value, low, high in ranges:
        # Not `value < low`: a NaN must be refused too.
        if not low <= value <= high:
            raise RequestError(f"`{name}` is {value}; expected {low}..{high}")
    if not 0.0 < settings.top_p <= 1.0:
        raise RequestError(f"`top_p` is {settings.top_p}; expected above 0 and at most 1")
    for token_id, bias in settings.logit_bias:
        if not -MAX_BIAS <= bias <= MAX_BIAS:
            raise RequestError(f"`logit_bias` of token {token_id} is {bias}; expected {-MAX_BIAS:g}..{MAX_BIAS:g}")
    if settings.seed is not None and settings.seed < 0:
        raise RequestError(f"`seed` is {settings.seed}; expected 0 or more")


class LogitShaper:
    """Applies one request's penalties; remembers which tokens prompt and answer hold.

    Args:
        settings: The request's settings.
        prompt_ids: Its prompt.
        end_ids: Tokens barred until `min_tokens` are out.
        vocab_size: V.
        guide: The answer's grammar, which moves on with every token; None for none.
    """

    def __init__(
        self,
        settings: SamplingSettings,
        prompt_ids: tuple[int, ...],
        end_ids: tuple[int, ...],
        vocab_size: int,
        guide: GuideBars | None = None,
    ) -> None:
        self._guide = guide
        self._settings = settings
        self._end_ids = list(end_ids)
        self._repeats = settings.repetition_penalty != 1.0
        self._counts = settings.frequency_penalty != 0.0 or settings.presence_penalty != 0.0
        self._seen_V = np.zeros(vocab_size if self._repeats else 0, bool)
        self._count_V = np.zeros(vocab_size if self._counts else 0, np.int32)
        self._num_outputs = 0
        self._bias_V = _bias(settings, vocab_size)
        self._barred_ids = [word[0] for word in settings.bad_words if len(word) == 1]
        self._long_words = [word for word in settings.bad_words if len(word) > 1]
        # As many of the answer's last tokens as the longest word can reach back to.
        self._tail: deque[int] = deque(maxlen=max((len(word) - 1 for word in self._long_words), default=0))
        if self._repeats:
            self._seen_V[list(prompt_ids)] = True

    @property
    def is_neutral(self) -> bool:
        """Whether logits always stay as they are."""
        bars_end = self._settings.min_tokens > 0 and bool(self._end_ids)
        bars = bars_end or self._guide is not None or self._settings.bad_words
        return not (self._repeats or self._counts or bars or self._bias_V is not None)

    def append(self, token_id: int) -> None:
        """Take a token into the history."""
        self._num_outputs += 1
        self._tail.append(token_id)
        if self._guide is not None:
            self._guide.append(token_id)
        if self._repeats:
            self._seen_V[token_id] = True
        if self._counts:
            self._count_V[token_id] += 1

    def shape(self, logits_V: NDArray[np.float32]) -> NDArray[np.float32]:
        """Logits with biases, penalties and bars; the argument itself where there are none."""
        barred_ids = self._barred()
        changes = self._repeats or self._counts or barred_ids or self._bias_V is not None
        if not changes and self._guide is None:
            return logits_V
        shaped_V = logits_V.copy() if self._bias_V is None else logits_V + self._bias_V
        if self._repeats:
            seen = shaped_V[self._seen_V]
            penalty = np.float32(self._settings.repetition_penalty)
            shaped_V[self._seen_V] = np.where(seen > 0, seen / penalty, seen * penalty)
        if self._counts:
            shaped_V -= np.float32(self._settings.frequency_penalty) * self._count_V
            shaped_V -= np.float32(self._settings.presence_penalty) * (self._count_V > 0)
        shaped_V[barred_ids] = -np.inf
        if self._guide is not None:
            shaped_V[~self._guide.allowed()] = -np.inf
        return shaped_V

    def _barred(self) -> list[int]:
        """Tokens that may not come next."""
        barred_ids = list(self._barred_ids)
        if self._num_outputs < self._settings.min_tokens:
            barred_ids += self._end_ids
        tail = tuple(self._tail)
        barred_ids += [word[-1] for word in self._long_words if _ends_with(tail, word[:-1])]
        return barred_ids


def _ends_with(tail: tuple[int, ...], head: tuple[int, ...]) -> bool:
    return len(tail) >= len(head) and tail[len(tail) - len(head) :] == head


def _bias(settings: SamplingSettings, vocab_size: int) -> NDArray[np.float32] | None:
    if not settings.logit_bias:
        return None
    bias_V = np.zeros(vocab_size, np.float32)
    for token_id, bias in settings.logit_bias:
        bias_V[token_id] += bias
    return bias_V


def distribution(logits_V: NDArray[np.float32], settings: SamplingSettings) -> NDArray[np.float64]:
    """Probabilities after temperature, top-k and top-p, in this order.

    Args:
        logits_V: [V] float32, penalties applied.
        settings: `temperature` above 0.

    Returns:
        [V] float64, sums to 1. Tokens tied at the edge of top-k are all kept.
    """
    scaled_V = logits_V.astype(np.float64) / settings.temperature
    if 0 < settings.top_k < len(scaled_V):
        edge = np.partition(scaled_V, -settings.top_k)[-settings.top_k]
        scaled_V = np.where(scaled_V >= edge, scaled_V, -np.inf)
    weights_V = np.exp(scaled_V - scaled_V.max())
    probabilities_V = weights_V / weights_V.sum()
    return _nucleus(probabilities_V, settings.top_p) if settings.top_p < 1.0 else probabilities_V


def draw(probabilities_V: NDArray[np.float64], generator: np.random.Generator) -> int:
    """One token; `probabilities_V` need not be normalised."""
    cumulative_V = np.cumsum(probabilities_V)
    token = int(np.searchsorted(cumulative_V, generator.random() * cumulative_V[-1], side="right"))
    # Rounding may place the draw on the last step of the sum, past the last token with any weight.
    return min(token, int(np.flatnonzero(probabilities_V)[-1]))


def _nucleus(probabilities_V: NDArray[np.float64], top_p: float) -> NDArray[np.float64]:
    """The smallest set of most likely tokens that reaches `top_p`. Source: arXiv 1904.09751."""
    order_V = np.argsort(-probabilities_V, kind="stable")
    reached_V = np.cumsum(probabilities_V[order_V])
    kept = int(np.searchsorted(reached_V, top_p)) + 1
    nucleus_V = np.zeros_like(probabilities_V)
    nucleus_V[order_V[:kept]] = probabilities_V[order_V[:kept]]
    nucleus_V /= nucleus_V.sum()
    return nucleus_V
