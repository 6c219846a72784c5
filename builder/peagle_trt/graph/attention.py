"""Attention of several sequences over their own caches, for ONNX Runtime.

Rows of all sequences lie one after another; a *group* is the run of rows that belongs to one sequence. Projections see
all rows at once; attention runs once a group, on a cache that is appended in place and costs what is present, not what
it could hold. A node a group, since GroupQueryAttention takes several query rows for a batch of one only. A group that
has no sequence needs a row all the same; it is added behind the projections, so that all it costs is a look at itself.

Letters: T rows of all groups, n rows of one group, G groups, C positions a cache holds, D head width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from peagle_trt.errors import CheckpointError
from peagle_trt.graph.builder import MICROSOFT, Dims, GraphBuilder
from peagle_trt.graph.rope import rotary_tables
from peagle_trt.spec import DrafterConfig, RopeConfig, TargetConfig

HEAD_DIM_MULTIPLE = 16
"""Source: ONNX Runtime 1.32, "head_size shall be a multiple of 16"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    """Heads of one attention.

    Attributes:
        num_query: Query heads.
        num_key_value: Key/value heads.
        dim: Width of a head.
        norm_epsilon: Epsilon of the per-head RMSNorms of queries and keys, or None where there are none.
    """

    num_query: int
    num_key_value: int
    dim: int
    norm_epsilon: float | None = None

    @property
    def widths(self) -> list[int]:
        """Columns of queries, keys and values in the packed projection."""
        return [self.num_query * self.dim, self.num_key_value * self.dim, self.num_key_value * self.dim]


def check_head_dims(target: TargetConfig, drafter: DrafterConfig) -> None:
    """Refuse heads of a width that the kernel cannot take, before anything is written for them.

    Raises:
        CheckpointError: It cannot.
    """
    for role, width in (("target", target.head_dim), ("drafter", drafter.head_dim)):
        if width % HEAD_DIM_MULTIPLE:
            raise CheckpointError(
                f"the {role}'s head_dim {width} is not a multiple of {HEAD_DIM_MULTIPLE}",
                hint="ONNX Runtime's GroupQueryAttention takes no other; no other backend of this release does either",
            )


class GroupedAttention:
    """Emits attention over G groups; holds what all layers share.

    Args:
        builder: Graph under construction.
        heads: Heads of every layer.
        rope: Rotary embedding of every layer.
        num_groups: G.
        cache_capacity: C.
        is_row_invariant: A row alone gets the bits that it gets among others. Every group is given one row more, of
            zeros, whose place in the cache the next pass overwrites, so that no group has a single row.
    """

    def __init__(
        self,
        builder: GraphBuilder,
        heads: HeadShape,
        rope: RopeConfig,
        *,
        num_groups: int,
        cache_capacity: int,
        is_row_invariant: bool = False,
    ) -> None:
        self._builder = builder
        self._heads = heads
        self._num_groups = num_groups
        self._capacity = cache_capacity
        self._is_row_invariant = is_row_invariant
        self._cos, self._sin = rotary_tables(builder, rope, heads.dim, cache_capacity)
        self._row_counts = builder.input("row_counts", "INT64", [num_groups]) if num_groups > 1 else ""
        self._total_rows = builder.op("ReduceSum", self._row_counts, keepdims=1) if num_groups > 1 else ""
        totals = builder.input("key_lengths", "INT32", [num_groups])
        self._totals = [
            builder.op("Gather", totals, builder.constant(np.array(group, np.int64))) for group in range(num_groups)
        ]
        one = builder.constant(np.array([1], np.int32))
        if is_row_invariant:
            self._totals = [builder.op("Add", total, builder.constant(np.array(1, np.int32))) for total in self._totals]
        self._last_keys = [builder.op("Sub", total, one) for total in self._totals]

    def emit(self, layer: int, packed_T: str, *, window: int = 0, sinks: str = "") -> str:
        """One layer's attention.

        Args:
            layer: Index, names caches and norm weights.
            packed_T: [T, (Hq + 2 Hkv) D], queries, keys and values side by side.
            window: Tokens a row looks back at, itself included; 0 for all.
            sinks: [Hq] logits that take part in every softmax and add nothing, or "" for none.

        Returns:
            [T, Hq * D].
        """
        parts, widths = _kernel_inputs(self._builder, self._heads, layer, packed_T)
        split = [self._by_group(part, width) for part, width in zip(parts, widths, strict=True)]
        outputs = [
            self._attend(layer, group, [part[group] for part in split], sinks, window)
            for group in range(self._num_groups)
        ]
        return self._joined(outputs, packed_T)

    def _by_group(self, rows_T: str, width: int) -> list[str]:
        """[1, n, width] of every group."""
        builder, axis = self._builder, self._builder.constant(np.array([0], np.int64))
        if self._num_groups == 1:
            return [builder.op("Unsqueeze", rows_T, axis)]
        missing = builder.op("Sub", self._total_rows, builder.op("Shape", rows_T, end=1))
        shape = builder.op("Concat", missing, builder.constant(np.array([width], np.int64)), axis=0)
        padding = builder.op("Expand", builder.constant(np.zeros((1, width), np.float32)), shape)
        padded = builder.op("Unsqueeze", builder.op("Concat", rows_T, padding, axis=0), axis)
        return builder.ops("Split", padded, self._row_counts, outputs=self._num_groups, axis=1)

    def _joined(self, outputs: list[str], packed_T: str) -> str:
        """All groups' rows one after another again, without the padding."""
        builder, zero = self._builder, self._builder.constant(np.array([0], np.int64))
        if self._num_groups == 1:
            return builder.op("Squeeze", outputs[0], zero)
        rows = builder.op("Squeeze", builder.op("Concat", *outputs, axis=1), zero)
        return builder.op("Slice", rows, zero, builder.op("Shape", packed_T, end=1), zero)

    def _attend(self, layer: int, group: int, parts: list[str], sinks: str, window: int) -> str:
        builder, heads = self._builder, self._heads
        dims = [1, heads.num_key_value, self._capacity, heads.dim]
        key, value = (builder.input(f"{kind}.{layer}.{group}", "FLOAT", dims) for kind in ("key", "value"))
        if self._is_row_invariant:
            parts = [self._with_a_row_more(part) for part in parts]
        output = _kernel(
            builder,
            heads,
            parts,
            [key, value],
            [self._last_keys[group], self._totals[group], self._cos, self._sin],
            sinks=sinks,
            window=window,
            output=f"attention.{layer}.{group}",
        )
        for cache in (key, value):
            builder.output(f"{cache}.out", "FLOAT", dims)
        return self._without_the_last_row(output) if self._is_row_invariant else output

    def _with_a_row_more(self, rows: str) -> str:
        """[1, n, width] and a row of zeros.

        ONNX Runtime 1.32 multiplies a single row in another order than several: queries of one row and of two differed
        by 3e-8 of 0.3, which integers in the layers behind made 1.2 of logits; two, six and forty rows were equal.
        """
        builder = self._builder
        pads = builder.constant(np.array([0, 0, 0, 0, 1, 0], np.int64))
        return builder.op("Pad", rows, pads)

    def _without_the_last_row(self, rows: str) -> str:
        builder = self._builder
        first, last, axis = (builder.constant(np.array([value], np.int64)) for value in (0, -1, 1))
        return builder.op("Slice", rows, first, last, axis)


class StepAttention:
    """Emits attention over B sequences of one row each, whose caches lie one after the other; B is free.

    Args:
        builder: Graph under construction.
        heads: Heads of every layer.
        rope: Rotary embedding of every layer.
        cache_capacity: C.
    """

    def __init__(self, builder: GraphBuilder, heads: HeadShape, rope: RopeConfig, *, cache_capacity: int) -> None:
        self._builder = builder
        self._heads = heads
        self._dims: Dims = ["B", heads.num_key_value, cache_capacity, heads.dim]
        tables = rotary_tables(builder, rope, heads.dim, cache_capacity)
        totals = builder.input("key_lengths", "INT32", ["B"])
        last_keys = builder.op("Sub", totals, builder.constant(np.array([1], np.int32)))
        self._places = [last_keys, builder.op("ReduceMax", totals, keepdims=0), *tables]

    def emit(self, layer: int, packed_T: str, *, window: int = 0, sinks: str = "") -> str:
        """One layer's attention; as `GroupedAttention.emit`, with T = B."""
        builder = self._builder
        parts, _ = _kernel_inputs(builder, self._heads, layer, packed_T)
        axis = builder.constant(np.array([1], np.int64))
        rows = [builder.op("Unsqueeze", part, axis) for part in parts]
        caches = [builder.input(f"{kind}.{layer}", "FLOAT", self._dims) for kind in ("key", "value")]
        output = _kernel(
            builder,
            self._heads,
            rows,
            caches,
            self._places,
            sinks=sinks,
            window=window,
            output=f"attention.{layer}",
        )
        for cache in caches:
            builder.output(f"{cache}.out", "FLOAT", self._dims)
        return builder.op("Squeeze", output, axis)


Attention = GroupedAttention | StepAttention
"""What a layer of a graph over flat rows attends with."""


def _kernel(
    builder: GraphBuilder,
    heads: HeadShape,
    rows: list[str],
    caches: list[str],
    places: list[str],
    *,
    sinks: str,
    window: int,
    output: str,
) -> str:
    """GroupQueryAttention that appends to `caches` and writes them to `NAME.out`.

    Args:
        builder: Graph under construction.
        heads: Heads.
        rows: Packed, [B, n, (Hq + 2 Hkv) D], or queries, keys and values apart.
        caches: Keys and values, [B, Hkv, C, D].
        places: Last key of every sequence, [B]; the longest sequence's keys; cosines and sines.
        sinks: As in `GroupedAttention.emit`.
        window: Likewise.
        output: Name of the output, [B, n, Hq * D].
    """
    query, new_key, new_value = rows if len(rows) == 3 else (rows[0], "", "")
    builder.ops(
        "GroupQueryAttention",
        *(query, new_key, new_value, *caches, *places),
        *(("", "", sinks) if sinks else ()),
        outputs=[output, *(f"{cache}.out" for cache in caches)],
        domain=MICROSOFT,
        num_heads=heads.num_query,
        kv_num_heads=heads.num_key_value,
        do_rotary=1,
        **({"local_window_size": window} if window else {}),
    )
    return output


def _kernel_inputs(builder: GraphBuilder, heads: HeadShape, layer: int, packed_T: str) -> tuple[list[str], list[int]]:
    """What the kernel reads and how wide it is: the packed projections, or three parts where two have norms."""
    if heads.norm_epsilon is None:
        return [packed_T], [sum(heads.widths)]
    sizes = builder.constant(np.array(heads.widths, np.int64))
    parts = builder.ops("Split", packed_T, sizes, outputs=3, axis=-1)
    counts = (heads.num_query, heads.num_key_value)
    for index, (count, name) in enumerate(zip(counts, ("q_norm", "k_norm"), strict=True)):
        by_head = builder.op("Reshape", parts[index], builder.constant(np.array([0, count, heads.dim], np.int64)))
        normed = builder.op(
            "RMSNormalization", by_head, builder.weight(f"layers.{layer}.{name}"), epsilon=heads.norm_epsilon
        )
        parts[index] = builder.op("Reshape", normed, builder.constant(np.array([0, -1], np.int64)))
    return parts, heads.widths
