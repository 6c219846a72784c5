"""Drafts of an answer that follows a grammar: every slot is masked as the drafts before it leave the grammar.

The drafter knows no grammar, and a slot of a parallel head not even the drafts before it. Unmasked, its first draft
that the grammar forbids would end every run. Source: vllm-project/vllm#42004, where acceptance falls to nothing after
the first position.

Letters: V vocabulary of the target, C tokens that a slot chooses from.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from peagle_trt.decode.acceptance import NO_DRAFTS, Drafts
from peagle_trt.decode.guide import GuideBars, only_token
from peagle_trt.decode.request import SamplingSettings
from peagle_trt.decode.sampling import distribution, draw
from peagle_trt.engine.protocol import DraftOutput

ChooseDraft = Callable[[NDArray[np.float32]], tuple[int, NDArray[np.float64] | None]]
"""Takes [C] masked logits; returns a place among them, and the [C] probabilities it was drawn from."""


def guided_drafts(
    guide: GuideBars,
    output: DraftOutput,
    index: int,
    draft_to_target: NDArray[np.int64],
    *,
    max_drafts: int,
    vocab_size: int,
    choose: ChooseDraft,
) -> Drafts:
    """What a draft pass proposes for one guided answer.

    Where the grammar leaves one token, that is the draft, whatever the drafter thinks.

    Args:
        guide: The answer's grammar, after its last token; left ahead by the drafts, see `GuideBars.undo_drafts`.
        output: The pass.
        index: Sequence of the pass.
        draft_to_target: [D] int64, id in the target's vocabulary of every draft id.
        max_drafts: Most that are wanted.
        vocab_size: V.
        choose: `likeliest`, or `drawn_with`.

    Returns:
        Fewer than wanted where the grammar ends, or allows nothing that the drafter can say.
    """
    drafts = NO_DRAFTS
    for slot in range(min(max_drafts, output.token_ids.shape[1])):
        allowed_V = guide.allowed_draft()
        if allowed_V is None:
            break
        draft = _draft(allowed_V, *_choices(output, index, slot, draft_to_target), vocab_size, choose)
        guide.append_draft(None if draft is None else draft.token_ids[0])
        if draft is None:
            break
        drafts = drafts.then(draft) if drafts.token_ids else draft
    return drafts


def likeliest(masked_C: NDArray[np.float32]) -> tuple[int, NDArray[np.float64] | None]:
    """See `ChooseDraft`: the argmax, which counts as drawn from a distribution that is 1 there."""
    return int(masked_C.argmax()), None


def drawn_with(temperature: float, generator: np.random.Generator) -> ChooseDraft:
    """See `ChooseDraft`: a draw at a temperature above 0."""
    settings = SamplingSettings(temperature=temperature)

    def choose(masked_C: NDArray[np.float32]) -> tuple[int, NDArray[np.float64] | None]:
        probabilities_C = distribution(masked_C, settings)
        return draw(probabilities_C, generator), probabilities_C

    return choose


def _choices(
    output: DraftOutput, index: int, slot: int, draft_to_target: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """[C] tokens of the target's vocabulary that a slot can say, and their logits up to a constant."""
    if output.candidates is None:
        assert output.logits is not None, "an engine gives candidates or logits"
        return draft_to_target, output.logits[index, slot]
    given_M = output.candidates.probabilities[index, slot]
    tiny = np.finfo(np.float32).tiny
    logits_M = np.where(given_M > 0, np.log(np.maximum(given_M, tiny)), np.float32(-np.inf))
    return output.candidates.token_ids[index, slot].astype(np.int64), logits_M.astype(np.float32)


def _draft(
    allowed_V: NDArray[np.bool_],
    ids_C: NDArray[np.int64],
    logits_C: NDArray[np.float32],
    vocab_size: int,
    choose: ChooseDraft,
) -> Drafts | None:
    forced = only_token(allowed_V)
    if forced is not None:
        ids_C, masked_C = np.array([forced]), np.zeros(1, np.float32)
    else:
        masked_C = np.where(allowed_V[ids_C], logits_C, np.float32(-np.inf))
    if not np.isfinite(masked_C).any():
        return None
    place, probabilities_C = choose(masked_C)
    if probabilities_C is None:
        return Drafts(token_ids=(int(ids_C[place]),))
    probabilities_KV = np.zeros((1, vocab_size))
    probabilities_KV[0, ids_C] = probabilities_C
    return Drafts(token_ids=(int(ids_C[place]),), probabilities_KV=probabilities_KV)
