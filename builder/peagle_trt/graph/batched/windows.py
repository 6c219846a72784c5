"""The rows of a cache that a sliding window can see, copied out: what a pass costs does not grow with the context.

S queries with a window of W tokens see W - 1 + S rows between them, the last of the sequence; with sinks, row 0 too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from peagle_trt.graph.builder import GraphBuilder


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowView:
    """A window's place in every cache of its size.

    Attributes:
        rows: [B, Hkv, N] int32, numbers of rows in a cache whose first three dimensions are one.
        mask: [B, 1, S, N] bool, which row of the pass sees which of them.
    """

    rows: str
    mask: str

    def of(self, builder: GraphBuilder, cache: str, width: int) -> str:
        """The rows of one cache, [B, Hkv, N, Dc]."""
        flat = builder.op("Reshape", cache, builder.constant(np.array([-1, width], np.int64)))
        return builder.op("Gather", flat, self.rows, axis=0)


def window_view(
    builder: GraphBuilder,
    window: int,
    rows_BS: str,
    start_positions: str,
    *,
    num_heads: int,
    cache_rows: int,
    has_sinks: bool,
) -> WindowView:
    """Find a window's rows.

    Args:
        builder: Graph under construction.
        window: W, tokens a row looks back at, itself included.
        rows_BS: Any [B, S].
        start_positions: [B] int32.
        num_heads: Hkv.
        cache_rows: Rows of a cache, that of the sinks included.
        has_sinks: Whether row 0 holds the sinks, and the first token's is row 1.
    """
    step = _count(builder, rows_BS, axis=1)
    seen = builder.op("Add", step, builder.constant(np.array(window - 1, np.int64)))
    if has_sinks:
        seen = builder.op("Add", seen, builder.constant(np.array(1, np.int64)))
    place_N, query_S = _range(builder, seen), _range(builder, step)
    if has_sinks:
        # The sinks' place is -1. TensorRT-RTX 1.7 compiles no graph that puts their column before the mask with a Pad.
        place_N = builder.op("Sub", place_N, _int32(builder, 1))
    first_B1 = _unsqueeze(builder, builder.op("Sub", start_positions, _int32(builder, window - 1)), 1)
    position_BN = builder.op("Add", first_B1, place_N)
    mask = _mask(builder, window, place_N, query_S, position_BN)
    rows_BN = builder.op("Max", position_BN, _int32(builder, 0))
    if has_sinks:
        is_sink_N = builder.op("Less", place_N, _int32(builder, 0))
        rows_BN = builder.op("Add", rows_BN, _int32(builder, 1))
        rows_BN = builder.op("Where", is_sink_N, _int32(builder, 0), rows_BN)
        mask = builder.op("Or", mask, is_sink_N)
    batch_B11 = _unsqueeze(builder, _range(builder, _count(builder, rows_BS, axis=0)), 1, 2)
    offsets_B11 = builder.op("Mul", batch_B11, _int32(builder, num_heads * cache_rows))
    heads_H1 = builder.constant((cache_rows * np.arange(num_heads, dtype=np.int32))[:, None])
    starts_BH1 = builder.op("Add", offsets_B11, heads_H1)
    return WindowView(rows=builder.op("Add", starts_BH1, _unsqueeze(builder, rows_BN, 1)), mask=mask)


def _mask(builder: GraphBuilder, window: int, place_N: str, query_S: str, position_BN: str) -> str:
    """Row j of the pass sees places j to j + W - 1, as far as they are not before the text; [B, 1, S, N]."""
    query_S1 = _unsqueeze(builder, query_S, 1)
    distance_SN = builder.op("Sub", place_N, query_S1)
    above = builder.op("GreaterOrEqual", distance_SN, _int32(builder, 0))
    below = builder.op("Less", distance_SN, _int32(builder, window))
    exists_BN = builder.op("GreaterOrEqual", position_BN, _int32(builder, 0))
    return builder.op("And", builder.op("And", above, below), _unsqueeze(builder, exists_BN, 1, 2))


def _count(builder: GraphBuilder, rows_BS: str, *, axis: int) -> str:
    return builder.op("Squeeze", builder.op("Shape", rows_BS, start=axis, end=axis + 1))


def _range(builder: GraphBuilder, count: str) -> str:
    """0, 1, ... as int32; counted in int64, for ONNX Runtime 1.32 loses a Cast in front of `Range` in static shapes."""
    zero, one = (builder.constant(np.array(value, np.int64)) for value in (0, 1))
    return builder.cast(builder.op("Range", zero, count, one), "INT32")


def _unsqueeze(builder: GraphBuilder, values: str, *axes: int) -> str:
    return builder.op("Unsqueeze", values, _integers(builder, *axes))


def _int32(builder: GraphBuilder, value: int) -> str:
    return builder.constant(np.array(value, np.int32))


def _integers(builder: GraphBuilder, *values: int) -> str:
    return builder.constant(np.array(values, np.int64))
