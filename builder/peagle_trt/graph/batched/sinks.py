"""Sinks as a coordinate: heads get wider, and one key that all queries see holds a 1 where the others hold a 0.

Every query carries its head's sink in that coordinate, so its product with the key of row 0 is the sink and nothing
else, and the value of row 0 is 0: the softmax counts the sink and adds nothing. That is exact, needs no mask, leaves
causal alignment alone, and keeps TensorRT's fused attention, which has no notion of a sink. A mask column would do the
same at [B, Hq, S, C] elements a layer.
"""

from __future__ import annotations

import numpy as np

from peagle_trt.graph.builder import GraphBuilder
from peagle_trt.spec import DrafterConfig, TargetConfig

SINK_WIDTH = 16
"""Columns that a head gains; one would do, but fused kernels take widths in steps of 16."""


def has_sinks(config: TargetConfig | DrafterConfig) -> bool:
    """Whether a model's attention counts sinks."""
    return isinstance(config, TargetConfig) and config.has_sinks


def widen(builder: GraphBuilder, heads: str) -> str:
    """Heads with columns of 0 behind them; [B, heads, S, D] to [B, heads, S, D + SINK_WIDTH]."""
    return builder.op("Pad", heads, builder.constant(np.array([0, 0, 0, 0, 0, 0, 0, SINK_WIDTH], np.int64)))


def carry_sinks(builder: GraphBuilder, queries: str, sinks: str, head_dim: int) -> str:
    """Widened queries, each with its head's sink, [Hq], in coordinate D."""
    column = builder.op("Reshape", builder.weight(sinks), builder.constant(np.array([1, -1, 1, 1], np.int64)))
    pads = [0, 0, 0, head_dim, 0, 0, 0, SINK_WIDTH - 1]
    placed = builder.op("Pad", column, builder.constant(np.array(pads, np.int64)))
    return builder.op("Add", widen(builder, queries), placed)
