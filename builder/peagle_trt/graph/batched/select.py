"""From the drafter's last hidden states to candidates and probabilities, in two spellings of one contract.

Letters beside those of the room: K drafted slots, M candidates, D draft vocabulary.
"""

from __future__ import annotations

import numpy as np

from peagle_trt.graph.batched.layers import linear, picked_rows
from peagle_trt.graph.batched.ports import num_candidates
from peagle_trt.graph.builder import GraphBuilder
from peagle_trt.spec import DrafterConfig
from peagle_trt_plugins import contract_select_draft as contract
from peagle_trt_plugins.onnx_select_stages import select_draft_top_k_functions


def select_with_plugin(builder: GraphBuilder, config: DrafterConfig, normed: str, sample_rows: str) -> None:
    """One node, whose two stages full TensorRT gives to the plugins of their names."""
    candidates = num_candidates(config)
    for function in select_draft_top_k_functions(candidates=candidates):
        builder.function(function)
    one = builder.constant(np.array(1.0, np.float32))
    builder.ops(
        contract.TOP_K_NAME,
        normed,
        sample_rows,
        builder.weight("lm_head"),
        builder.weight("draft_to_target"),
        builder.op("Expand", one, builder.op("Shape", "num_accepted")),
        outputs=["candidate_ids", "probabilities"],
        domain=contract.DOMAIN,
        candidates=candidates,
    )


def select_with_nodes(builder: GraphBuilder, config: DrafterConfig, normed: str, sample_rows: str) -> None:
    """Standard operators. The product adds up in the graph's type; a NaN counts as the lowest number."""
    product = linear(builder, picked_rows(builder, normed, sample_rows), "lm_head")
    logits = builder.cast(product, "FLOAT")
    bound = float(np.finfo(np.float32).max)
    lowest, highest = (builder.constant(np.array(value, np.float32)) for value in (-bound, bound))
    finite = builder.op("Where", builder.op("IsNaN", logits), lowest, logits)
    count = builder.constant(np.array([num_candidates(config)], np.int64))
    best, chosen = builder.ops("TopK", builder.op("Clip", finite, lowest, highest), count, outputs=2, axis=-1)
    ids = builder.op("Gather", builder.weight("draft_to_target"), chosen, axis=0)
    builder.cast(ids, "INT32", output="candidate_ids")
    builder.op("Softmax", best, axis=-1, output="probabilities")
