"""The one source of what `peagle::ParallelDraft` takes and gives; every form of it is tested against this.

One launch turns a verify step's outcome into the input of the drafter's first layer, for every slot of every sequence:
token expansion, embedding gather, mask rows, both norms, the concatenation, the residual, the positions and the rows to
sample. Row j of a sequence that accepted n drafts holds

    j <= n          the token that follows row j and the hidden state of row j; row n carries the bonus token
    n < j < n + K   the mask token and the mask hidden state
    j >= n + K      padding: token 0, hidden 0, position 0; no valid row can attend to it, since attention is causal

Letters: B sequences, R rows carried over from the verify step (K+1 when decoding, a chunk's length in a prompt),
K drafted slots, W = R + K - 1 rows out, H hidden size of the drafter, V vocabulary of the target.

Source: vLLM 0.16+ `copy_and_expand_eagle_inputs_kernel` (geometry); P-EAGLE (arXiv 2602.01469, figure 2).
"""

from __future__ import annotations

from peagle_trt_plugins.ports import DOMAIN as DOMAIN
from peagle_trt_plugins.ports import VERSION as VERSION
from peagle_trt_plugins.ports import Attribute, Port

NAME = "ParallelDraft"

INPUTS = (
    Port(
        name="next_token_ids",
        element="int32",
        dims=("B", "R"),
        meaning="token that follows each row; [b, n] is the bonus",
    ),
    Port(name="fused_hidden", element="float", dims=("B", "R", "H"), meaning="fc(auxiliary hidden states) of each row"),
    Port(name="num_accepted", element="int32", dims=("B",), meaning="n, drafts accepted: rows 0..n are real; 0..R-1"),
    Port(name="start_positions", element="int32", dims=("B",), meaning="position of row 0"),
    Port(name="mask_token_ids", element="int32", dims=("K",), meaning="the mask token, K times; its length is K"),
    Port(name="embedding", element="float", dims=("V", "H"), meaning="embedding table"),
    Port(name="fused_mask_hidden", element="float", dims=("H",), meaning="fc(mask_hidden), fused once at build time"),
    Port(name="embedding_norm_weight", element="float", dims=("H",), meaning="layer 0's input norm"),
    Port(name="hidden_norm_weight", element="float", dims=("H",), meaning="layer 0's hidden norm"),
)
OUTPUTS = (
    Port(name="layer_input", element="float", dims=("B", "W", "2H"), meaning="[norm(embedding) | norm(hidden)]"),
    Port(name="residual", element="float", dims=("B", "W", "H"), meaning="hidden, normalised if norm_before_residual"),
    Port(name="positions", element="int32", dims=("B", "W"), meaning="rotary position; 0 for padding"),
    Port(name="sample_rows", element="int32", dims=("B", "K"), meaning="row that predicts draft k: n + k"),
)
ATTRIBUTES = (
    Attribute(name="epsilon", kind="float", meaning="epsilon of both RMSNorms"),
    Attribute(name="norm_before_residual", kind="int", meaning="1: the residual is the normalised hidden state"),
)
