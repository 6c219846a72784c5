"""Chain verification: which drafts the target keeps, and the token it adds.

Letters: K drafts, V vocabulary of the target, D draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peagle_trt.decode.request import SamplingSettings
from peagle_trt.decode.sampling import LogitShaper, distribution, draw
from peagle_trt.engine.protocol import DraftCandidates


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """What one draft pass proposed for one sequence.

    Attributes:
        token_ids: K ids of the target's vocabulary.
        probabilities_KV: [K, V] float64, the distributions the drafts were drawn from; None for argmax drafts, which
            count as drawn from a distribution that is 1 at the draft.
    """

    token_ids: tuple[int, ...]
    probabilities_KV: NDArray[np.float64] | None = None

    def first(self, count: int) -> Drafts:
        """The first `count` of them."""
        kept = None if self.probabilities_KV is None else self.probabilities_KV[:count]
        return Drafts(token_ids=self.token_ids[:count], probabilities_KV=kept)

    def then(self, following: Drafts) -> Drafts:
        """These and then others, of which either all or none were drawn."""
        if self.probabilities_KV is None or following.probabilities_KV is None:
            return Drafts(token_ids=self.token_ids + following.token_ids)
        both = np.concatenate([self.probabilities_KV, following.probabilities_KV])
        return Drafts(token_ids=self.token_ids + following.token_ids, probabilities_KV=both)


NO_DRAFTS = Drafts(token_ids=())


def verify(
    logits: NDArray[np.float32],
    drafts: Drafts,
    *,
    settings: SamplingSettings,
    shaper: LogitShaper,
    generator: np.random.Generator,
    is_end: Callable[[int], bool],
) -> tuple[list[int], int]:
    """Walk the rows of a verify step.

    The result is distributed as if the target alone had drawn every token: a draft d with target probability p(d)
    and draft probability q(d) stays with probability min(1, p(d)/q(d)); the first that goes is replaced by a draw from
    max(p - q, 0). At temperature 0 a draft stays when it is the argmax.

    Args:
        logits: [K+1, V] float32; row i follows the drafts before i.
        drafts: K drafts, K >= 0.
        settings: The request's sampling.
        shaper: The request's penalties; takes every returned token in.
        generator: The request's random stream.
        is_end: Whether a token ends the answer; nothing is drawn past one.

    Returns:
        Tokens in order, at least one (accepted drafts, then bonus or replacement), and how many of them are drafts.

    Source: speculative sampling (arXiv 2211.17192, appendix A.1; arXiv 2302.01318, theorem 1).
    """
    tokens: list[int] = []
    for index, draft in enumerate(drafts.token_ids):
        shaped_V = shaper.shape(logits[index])
        draft_V = None if drafts.probabilities_KV is None else drafts.probabilities_KV[index]
        token = _choose(shaped_V, draft, draft_V, settings, generator)
        tokens.append(token)
        shaper.append(token)
        if token != draft:
            return tokens, index
        if is_end(token):
            return tokens, index + 1
    bonus = choose(shaper.shape(logits[len(drafts.token_ids)]), settings, generator)
    shaper.append(bonus)
    return [*tokens, bonus], len(drafts.token_ids)


def verify_greedily(best_ids: Sequence[int], drafts: Drafts, *, is_end: Callable[[int], bool]) -> tuple[list[int], int]:
    """`verify` at temperature 0 without penalties, from the argmax of every row.

    Args:
        best_ids: K+1 ids; the target's most likely token after the drafts before it.
        drafts: K drafts, K >= 0.
        is_end: Whether a token ends the answer.

    Returns:
        As `verify`.
    """
    for index, (best, draft) in enumerate(zip(best_ids, drafts.token_ids, strict=False)):
        if best != draft:
            return list(best_ids[: index + 1]), index
        if is_end(best):
            return list(best_ids[: index + 1]), index + 1
    count = len(drafts.token_ids)
    return list(best_ids[: count + 1]), count


def choose(shaped_V: NDArray[np.float32], settings: SamplingSettings, generator: np.random.Generator) -> int:
    """One token from the target alone."""
    if settings.temperature == 0.0:
        return int(np.argmax(shaped_V))
    return draw(distribution(shaped_V, settings), generator)


def propose(
    logits_KD: NDArray[np.float32],
    draft_to_target_D: NDArray[np.int64],
    vocab_size: int,
    temperature: float,
    generator: np.random.Generator,
) -> Drafts:
    """Draw drafts from the drafter's own distribution instead of taking its argmax.

    Args:
        logits_KD: [K, D] float32.
        draft_to_target_D: [D] int64, id in the target's vocabulary of every draft id.
        vocab_size: V.
        temperature: Above 0.
        generator: The request's random stream.
    """
    settings = SamplingSettings(temperature=temperature)
    probabilities_KV = np.zeros((len(logits_KD), vocab_size))
    token_ids = []
    for index, logits_D in enumerate(logits_KD):
        probabilities_D = distribution(logits_D, settings)
        token_ids.append(int(draft_to_target_D[draw(probabilities_D, generator)]))
        probabilities_KV[index, draft_to_target_D] = probabilities_D
    return Drafts(token_ids=tuple(token_ids), probabilities_KV=probabilities_KV)


def propose_candidates(
    candidates: DraftCandidates, index: int, vocab_size: int, temperature: float, generator: np.random.Generator
) -> Drafts:
    """Draw drafts from the likeliest tokens of every slot, where an engine gives no more than these.

    Args:
        candidates: Those of a draft pass.
        index: Sequence of the pass.
        vocab_size: V.
        temperature: Above 0; applied here, since the probabilities are those at 1.
        generator: The request's random stream.
    """
    settings = SamplingSettings(temperature=temperature)
    ids_KM, given_KM = candidates.token_ids[index], candidates.probabilities[index]
    probabilities_KV = np.zeros((len(ids_KM), vocab_size))
    token_ids = []
    for slot, (ids_M, given_M) in enumerate(zip(ids_KM, given_KM, strict=True)):
        # A softmax forgets only what all its logits have in common. One that fell to zero is never drawn.
        logits_M = np.log(np.maximum(given_M, np.finfo(np.float32).tiny))
        probabilities_M = np.where(given_M > 0, distribution(logits_M, settings), 0.0)
        token_ids.append(int(ids_M[draw(probabilities_M, generator)]))
        probabilities_KV[slot, ids_M] = probabilities_M / probabilities_M.sum()
    return Drafts(token_ids=tuple(token_ids), probabilities_KV=probabilities_KV)


def _choose(
    shaped_V: NDArray[np.float32],
    draft: int,
    draft_V: NDArray[np.float64] | None,
    settings: SamplingSettings,
    generator: np.random.Generator,
) -> int:
    """The draft, if the target keeps it, or its replacement."""
    if settings.temperature == 0.0:
        return int(np.argmax(shaped_V))
    target_V = distribution(shaped_V, settings)
    if draft_V is None:
        # A draft that was not drawn stands where the target's own draw is that token, which has its probability under
        # the target; any other draw is one of the residual. One number a token, whatever K: a seed gives one answer.
        return draw(target_V, generator)
    if generator.random() * float(draft_V[draft]) < target_V[draft]:
        return draft
    residual_V = np.maximum(target_V - draft_V, 0.0)
    # A draft is refused only where q > p, so some other token has p > q, up to rounding.
    return draw(residual_V if residual_V.any() else target_V, generator)
