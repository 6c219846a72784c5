"""Attention of a batch over its caches: dense rows in, appended in place, lengths instead of masks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from peagle_trt.graph.attention import HeadShape
from peagle_trt.graph.batched.nodes import causal_attention, masked_attention
from peagle_trt.graph.batched.rotary import rotations
from peagle_trt.graph.batched.sinks import SINK_WIDTH, carry_sinks, widen
from peagle_trt.graph.batched.windows import WindowView, window_view
from peagle_trt.graph.builder import GraphBuilder
from peagle_trt.spec import RopeConfig


class BatchedAttention:
    """Emits attention; holds what all layers share.

    Args:
        builder: Graph under construction, which has the inputs `start_positions`, `key_lengths` and every cache.
        heads: Heads of every layer.
        rope: Rotary embedding of every layer.
        positions: [B, S] int32, of every row.
        cache_capacity: C.
        has_sinks: Whether caches hold sinks in row 0.
    """

    def __init__(
        self,
        builder: GraphBuilder,
        heads: HeadShape,
        rope: RopeConfig,
        *,
        positions: str,
        cache_capacity: int,
        has_sinks: bool = False,
    ) -> None:
        self._builder = builder
        self.heads = heads
        self._positions = positions
        self._has_sinks = has_sinks
        # With sinks, the first token's row is row 1.
        self._cache_rows = cache_capacity + int(has_sinks)
        self._width = heads.dim + (SINK_WIDTH if has_sinks else 0)
        first_row, self._lengths = "start_positions", "key_lengths"
        if has_sinks:
            one = builder.constant(np.array(1, np.int32))
            first_row, self._lengths = (builder.op("Add", value, one) for value in (first_row, self._lengths))
        self._first_row = builder.cast(first_row, "INT64")
        self._turn_query, self._turn_key = rotations(builder, rope, heads.dim, positions, max_positions=cache_capacity)
        self._views: dict[int, WindowView] = {}

    def emit(self, layer: int, parts: Sequence[str], *, window: int = 0, sinks: str = "") -> str:
        """One layer's attention.

        Args:
            layer: Index, names caches and norm weights.
            parts: Queries, keys and values, [B, S, heads * D] each.
            window: Tokens a row looks back at, itself included; 0 for all.
            sinks: Stored logits, [Hq], that take part in every softmax and add nothing, or "" for none.

        Returns:
            [B, S, Hq * D].
        """
        builder, heads = self._builder, self.heads
        query, key, value = self._by_head(layer, parts)
        query, key = self._turn_query.turn(builder, query), self._turn_key.turn(builder, key)
        if self._has_sinks:
            query = carry_sinks(builder, query, sinks, heads.dim)
            key, value = widen(builder, key), widen(builder, value)
        keys, values = self._append(f"key.{layer}", key), self._append(f"value.{layer}", value)
        mixed = self._attend(query, keys, values, window)
        if self._has_sinks:
            starts, ends, axis = ([0], [heads.dim], [3])
            mixed = builder.op("Slice", mixed, *(builder.constant(np.array(v, np.int64)) for v in (starts, ends, axis)))
        by_row = builder.op("Transpose", mixed, perm=[0, 2, 1, 3])
        return builder.op("Reshape", by_row, builder.constant(np.array([0, 0, heads.num_query * heads.dim], np.int64)))

    def _by_head(self, layer: int, parts: Sequence[str]) -> list[str]:
        """The parts as [B, heads, S, D]; queries and keys normalised per head where they are to be."""
        builder, heads = self._builder, self.heads
        counts, found = (heads.num_query, heads.num_key_value, heads.num_key_value), []
        for part, count, norm in zip(parts, counts, ("q_norm", "k_norm", ""), strict=True):
            rows = builder.op("Reshape", part, builder.constant(np.array([0, 0, count, heads.dim], np.int64)))
            if norm and heads.norm_epsilon is not None:
                weight = builder.weight(f"layers.{layer}.{norm}")
                rows = builder.op("RMSNormalization", rows, weight, epsilon=heads.norm_epsilon)
            found.append(builder.op("Transpose", rows, perm=[0, 2, 1, 3]))
        return found

    def _append(self, cache: str, rows: str) -> str:
        """Write rows behind a cache's valid ones; the graph's inputs and outputs of that name share a buffer."""
        return self._builder.op("TensorScatter", cache, rows, self._first_row, output=f"{cache}.out", axis=-2)

    def _attend(self, query: str, keys: str, values: str, window: int) -> str:
        builder = self._builder
        if window == 0:
            return causal_attention(builder, query, keys, values, self._lengths)
        if window not in self._views:
            self._views[window] = window_view(
                builder,
                window,
                self._positions,
                "start_positions",
                num_heads=self.heads.num_key_value,
                cache_rows=self._cache_rows,
                has_sinks=self._has_sinks,
            )
        view = self._views[window]
        keys, values = (view.of(builder, cache, self._width) for cache in (keys, values))
        return masked_attention(builder, query, keys, values, view.mask)
