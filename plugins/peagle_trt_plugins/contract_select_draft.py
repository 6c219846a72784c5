"""The one source of what `peagle::SelectDraft` and `peagle::SelectDraftTopK` take and give.

They turn the last hidden states of one draft pass into its K drafts, without ever writing the logits: at 201,088 ids
and 64 sequences of 7 slots those would be 360 MB in float32, written once and read once.

What a logit is, in every form:

    logits[b, k, d] = sum over h of hidden[b, sample_rows[b, k], h] * lm_head[d, h], added up in float32

clamped to the finite range of float32, where a NaN counts as the lowest number. So drafts always lie in the vocabulary
and probabilities are always finite and sum to one, whatever a damaged row holds. Hiding a NaN is safe here and only
here: the target verifies every draft, so that a bad one costs acceptance and can never reach an answer. Rows that are
not sampled are not read.

Ties go to the lowest id in the draft vocabulary, which is the lowest in the target's as well when `draft_to_target`
ascends, as published tables do.

`SelectDraftTopK` serves sampled drafting: the M best candidates, best first, and the distribution a draft is to be
drawn from, the softmax of their logits over the temperature *among the M alone*. It is renormalised because rejection
sampling must be told the distribution that was drawn from, and that one is cut to M candidates. A temperature of 0
means no distribution and is refused; greedy drafts are `SelectDraft`'s.

Letters: B sequences, W rows of the draft pass, K drafted slots, H hidden size, D draft vocabulary, M candidates.

Source: EAGLE-3 (arXiv 2503.01840), the reduced draft vocabulary; arXiv 2211.17192, speculative sampling.
"""

from __future__ import annotations

from peagle_trt_plugins.ports import DOMAIN as DOMAIN
from peagle_trt_plugins.ports import VERSION as VERSION
from peagle_trt_plugins.ports import Attribute, Port

NAME = "SelectDraft"
TOP_K_NAME = "SelectDraftTopK"

MAX_CANDIDATES = 16
"""M; the last stage keeps M candidates of every block of the vocabulary in registers."""

INPUTS = (
    Port(name="hidden", element="float", dims=("B", "W", "H"), meaning="rows of the draft pass after the final norm"),
    Port(name="sample_rows", element="int32", dims=("B", "K"), meaning="row that predicts draft k, from ParallelDraft"),
    Port(name="lm_head", element="float", dims=("D", "H"), meaning="output layer over the draft vocabulary"),
    Port(name="draft_to_target", element="int64", dims=("D",), meaning="id in the target's vocabulary, not an offset"),
)
OUTPUTS = (
    Port(name="draft_token_ids", element="int32", dims=("B", "K"), meaning="best id, in the target's vocabulary"),
)
TOP_K_INPUTS = (
    *INPUTS,
    Port(name="temperature", element="float32", dims=("B",), meaning="above 0; divides the logits of a sequence"),
)
TOP_K_OUTPUTS = (
    Port(name="candidate_ids", element="int32", dims=("B", "K", "M"), meaning="best first, in the target's vocabulary"),
    Port(name="probabilities", element="float32", dims=("B", "K", "M"), meaning="of the candidates; they sum to one"),
)
TOP_K_ATTRIBUTES = (Attribute(name="candidates", kind="int", meaning="M; 1..16, and at most D"),)
