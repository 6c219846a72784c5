"""Attention by the name under which TensorRT has it natively, with a body for a runtime that has not.

TensorRT's parser takes `TRT_Attention` of any domain for its own layer and ignores the body; ONNX Runtime runs the
body. Of the standard operator, TensorRT drops `nonpad_kv_seqlen` without a word and aligns the causal mask to the upper
left.

Source: NVIDIA onnx-tensorrt 11, `TRT_Attention`: inputs query, key, value, mask, query lengths, key/value lengths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from peagle_trt.graph.builder import GraphBuilder

if TYPE_CHECKING:
    import onnx

BATCHED_OPSET = 24
ATTENTION = "TRT_Attention"
CAUSAL_DOMAIN, MASKED_DOMAIN = "peagle.causal", "peagle.masked"


def causal_attention(builder: GraphBuilder, query: str, key: str, value: str, lengths: str) -> str:
    """Attention over a cache whose last S valid rows are the queries' own; row j sees all up to its own.

    Args:
        builder: Graph under construction.
        query: [B, Hq, S, Dc], already divided by sqrt(D).
        key: [B, Hkv, C, Dc].
        value: [B, Hkv, C, Dc].
        lengths: [B] int32, valid rows of the cache.

    Returns:
        [B, Hq, S, Dc].
    """
    builder.function(_causal_function())
    inputs = (query, key, value, "", "", lengths)
    return builder.op(
        ATTENTION, *inputs, domain=CAUSAL_DOMAIN, causal_kind="lower_right", TRT_decomposable=_is_decomposable(builder)
    )


def masked_attention(builder: GraphBuilder, query: str, key: str, value: str, mask: str) -> str:
    """Attention over N rows of which a mask, [B, 1, S, N] bool, says which each query sees."""
    builder.function(_masked_function())
    return builder.op(
        ATTENTION, query, key, value, mask, domain=MASKED_DOMAIN, TRT_decomposable=_is_decomposable(builder)
    )


def _is_decomposable(builder: GraphBuilder) -> int:
    """Whether TensorRT may take attention apart, for which it has no fused kernel in float32."""
    return int(builder.element == "FLOAT")


def _causal_function() -> onnx.FunctionProto:
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Cast", ["kv_lengths"], ["lengths"], to=TensorProto.INT64),
        helper.make_node(
            "Attention", ["query", "key", "value", "", "", "", "lengths"], ["mixed"], is_causal=1, scale=1.0
        ),
    ]
    inputs = ["query", "key", "value", "mask", "query_lengths", "kv_lengths"]
    return _function(CAUSAL_DOMAIN, inputs, nodes, ["causal_kind", "TRT_decomposable"])


def _masked_function() -> onnx.FunctionProto:
    from onnx import helper

    inputs = ["query", "key", "value", "mask"]
    nodes = [helper.make_node("Attention", inputs, ["mixed"], scale=1.0)]
    return _function(MASKED_DOMAIN, inputs, nodes, ["TRT_decomposable"])


def _function(domain: str, inputs: list[str], nodes: list[onnx.NodeProto], attributes: list[str]) -> onnx.FunctionProto:
    """A body; every node of its name carries all of its attributes."""
    from onnx import helper

    return helper.make_function(
        domain=domain,
        fname=ATTENTION,
        inputs=inputs,
        outputs=["mixed"],
        nodes=nodes,
        opset_imports=[helper.make_opsetid("", BATCHED_OPSET)],
        attributes=attributes,
    )
