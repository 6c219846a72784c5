"""The one source of the two stages of `SelectDraft` and `SelectDraftTopK`, as a TensorRT engine runs them.

A TensorRT plugin is one kernel, and the drafts need two: one that reads the output layer, spread over the whole GPU,
and one that looks over what its blocks found. Hence `peagle::SelectBlocks`, then `peagle::MergeBest` for the best draft
or `peagle::MergeCandidates` for M of them. Together they give what contract_select_draft.py says.

E entries lie between the stages: for every block of the vocabulary, in the order of its ids, the best M logits of the
block, best first, with their ids in the draft vocabulary. How the vocabulary is cut is each form's own business, since
merging asks for that order alone; a form without blocks has one, and E = M. What a block lacks is filled with -inf,
which no logit is, and with an id that is not used.

Letters: B sequences, W rows of the draft pass, K drafted slots, H hidden size, D draft vocabulary, M candidates,
E entries.
"""

from __future__ import annotations

from peagle_trt_plugins.contract_select_draft import DOMAIN as DOMAIN
from peagle_trt_plugins.contract_select_draft import INPUTS, OUTPUTS, TOP_K_ATTRIBUTES, TOP_K_INPUTS, TOP_K_OUTPUTS
from peagle_trt_plugins.ports import Port

BLOCKS_NAME = "SelectBlocks"
BEST_NAME = "MergeBest"
CANDIDATES_NAME = "MergeCandidates"

BLOCKS_INPUTS = INPUTS[:3]
BLOCKS_OUTPUTS = (
    Port(name="block_values", element="float32", dims=("B", "K", "E"), meaning="logits of the entries"),
    Port(name="block_ids", element="int32", dims=("B", "K", "E"), meaning="their ids in the draft vocabulary"),
)
BLOCKS_ATTRIBUTES = TOP_K_ATTRIBUTES

BEST_INPUTS = (*BLOCKS_OUTPUTS, INPUTS[3])
BEST_OUTPUTS = OUTPUTS

CANDIDATES_INPUTS = (*BEST_INPUTS, TOP_K_INPUTS[4])
CANDIDATES_OUTPUTS = TOP_K_OUTPUTS
CANDIDATES_ATTRIBUTES = TOP_K_ATTRIBUTES
