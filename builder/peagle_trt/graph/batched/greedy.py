"""The id of the largest logit, and of equal ones the lowest, whatever runs the graph.

Logits of a bfloat16 product lie on few values: near 30 they are 1/8 apart, so that two ids share the first place every
so often. A verify step and a single step must then take the same one. TensorRT's parser makes TopK of ArgMax, and of
TopK's order among equals its documentation says nothing; so the largest value is looked for first, and then the lowest
id that has it.

Letters: L rows, V vocabulary.
"""

from __future__ import annotations

import numpy as np

from peagle_trt.graph.builder import GraphBuilder


def pick_greedily(builder: GraphBuilder, logits: str, vocab_size: int, *, output: str) -> str:
    """Pick an id for every row.

    Args:
        builder: Graph under construction.
        logits: [..., L, V] float32.
        vocab_size: V.
        output: Name of the result.

    Returns:
        [..., L] int32, always in the vocabulary: a row that holds a NaN gets its last id.
    """
    axis = builder.constant(np.array([-1], np.int64))
    largest = builder.op("ReduceMax", logits, axis, keepdims=1)
    first, size, step = (builder.constant(np.array(value, np.int32)) for value in (0, vocab_size, 1))
    ids_V = builder.op("Range", first, size, step)
    last = builder.constant(np.array(vocab_size - 1, np.int32))
    candidates = builder.op("Where", builder.op("Equal", logits, largest), ids_V, last)
    return builder.op("ReduceMin", candidates, axis, keepdims=0, output=output)
