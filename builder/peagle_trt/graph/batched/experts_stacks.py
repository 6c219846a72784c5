"""Matrices of all experts as a build stores them, and products with the ones that were chosen.

A chosen matrix is multiplied as `sum(matrix * column)`, not by MatMul: a compiler can then unpack, scale, multiply and
add in one pass over the stored bytes, while operands of a MatMul would be written out first, at four times the bytes.

Letters: T rows, k experts chosen by each, E experts, n blocks of a row, w words of a block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from peagle_trt.errors import CheckpointError
from peagle_trt.graph.batched.packed_words import (
    CODES_A_WORD,
    SCALES_A_WORD,
    doubled_values,
    doubled_values_in_order,
    halved_e4m3,
    halved_e8m0,
    scale_values,
)
from peagle_trt.graph.builder import ELEMENTS, GraphBuilder
from peagle_trt.graph.looped_experts import ScatteredStack
from peagle_trt.quant.in_place import BLOCKS, SCALES
from peagle_trt.quant.packing import BLOCK_SCALES, GLOBAL_SCALE
from peagle_trt.readers.packed import MXFP4_BLOCK, NVFP4_BLOCK
from peagle_trt.spec import TensorSpec


class Stack(Protocol):
    """Matrices [rows, columns] of all experts."""

    def product(self, builder: GraphBuilder, chosen_Tk: str, columns: str) -> str:
        """Every chosen matrix times a column.

        Args:
            builder: Graph under construction.
            chosen_Tk: Numbers of experts, int64.
            columns: [T, k, columns] float32, or [T, 1, columns] where a row has the same for all.

        Returns:
            [T, k, rows] float32.
        """

    def matrix(self, builder: GraphBuilder, expert: str) -> str:
        """The matrix of one expert, given as [1, 1] int64: [rows, columns] in the type the graph computes in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseStack:
    """Matrices of a floating type.

    Attributes:
        table: Value in the graph, a matrix at each place, in the type that the graph computes in.
        place_of_E: Place of every expert's matrix; None where they are in order.
        rows: Rows of a matrix.
        columns: Columns of a matrix.
    """

    table: str
    place_of_E: NDArray[np.int64] | None
    rows: int
    columns: int

    def product(self, builder: GraphBuilder, chosen_Tk: str, columns: str) -> str:
        """See `Stack`."""
        found = builder.op("Reshape", self._find(builder, chosen_Tk), integers(builder, 0, 0, self.rows, self.columns))
        scaled = builder.op("Mul", _as_float(builder, found), builder.op("Unsqueeze", columns, integers(builder, 2)))
        return builder.op("ReduceSum", scaled, integers(builder, 3), keepdims=0)

    def matrix(self, builder: GraphBuilder, expert: str) -> str:
        """See `Stack`."""
        return builder.op("Reshape", self._find(builder, expert), integers(builder, self.rows, self.columns))

    def _find(self, builder: GraphBuilder, chosen: str) -> str:
        if self.place_of_E is not None:
            chosen = builder.op("Gather", builder.constant(self.place_of_E), chosen, axis=0)
        return builder.op("Gather", self.table, chosen, axis=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedStack:
    """Matrices of E2M1 codes, with a scale for each block of a row.

    Attributes:
        codes: Stored bytes of the codes, [E, rows, ...].
        scales: Stored bytes of the scales.
        halved_scales: Half of what each of the 256 codes of a scale stands for.
        global_scale: Stored name of the scale of all, or "".
        block: Codes that share a scale.
        rows: Rows of a matrix.
        columns: Columns of a matrix.
    """

    codes: TensorSpec
    scales: TensorSpec
    halved_scales: Callable[[], NDArray[np.float32]]
    global_scale: str
    block: int
    rows: int
    columns: int

    def product(self, builder: GraphBuilder, chosen_Tk: str, columns: str) -> str:
        """See `Stack`."""
        n, w = self.columns // self.block, self.block // CODES_A_WORD
        by_code = builder.op("Reshape", columns, integers(builder, 0, 0, 1, n, w, CODES_A_WORD))
        parts = builder.ops("Split", by_code, outputs=CODES_A_WORD, axis=5, num_outputs=CODES_A_WORD)
        total = ""
        for value, part in zip(doubled_values(builder, self._words(builder, chosen_Tk)), parts, strict=True):
            term = builder.op("Mul", value, builder.op("Squeeze", part, integers(builder, 5)))
            total = builder.op("Add", total, term) if total else term
        scaled = builder.op("Mul", total, self._factors(builder, chosen_Tk))
        product = builder.op("ReduceSum", scaled, integers(builder, 3, 4), keepdims=0)
        return self._times_global(builder, product)

    def matrix(self, builder: GraphBuilder, expert: str) -> str:
        """See `Stack`."""
        n = self.columns // self.block
        values = doubled_values_in_order(builder, self._words(builder, expert))
        by_block = builder.op("Reshape", values, integers(builder, self.rows, n, self.block))
        factors = builder.op("Reshape", self._factors(builder, expert), integers(builder, self.rows, n, 1))
        scaled = self._times_global(builder, builder.op("Mul", by_block, factors))
        matrix = builder.op("Reshape", scaled, integers(builder, self.rows, self.columns))
        return matrix if builder.element == "FLOAT" else builder.cast(matrix, builder.element)

    def _words(self, builder: GraphBuilder, chosen: str) -> str:
        """[T, k, rows, n, w] int32."""
        shape = (self.codes.shape[0], self.rows, self.columns // self.block, self.block // CODES_A_WORD)
        return builder.op("Gather", builder.place(_as_words(self.codes, shape)), chosen, axis=0)

    def _factors(self, builder: GraphBuilder, chosen: str) -> str:
        """Half of every block's scale, [T, k, rows, n, 1] float32."""
        n = self.columns // self.block
        shape = (self.scales.shape[0], self.rows * n // SCALES_A_WORD)
        words = builder.op("Gather", builder.place(_as_words(self.scales, shape)), chosen, axis=0)
        values = scale_values(builder, words, builder.constant(self.halved_scales()))
        together = builder.op(
            "Concat", *(builder.op("Unsqueeze", each, integers(builder, 3)) for each in values), axis=3
        )
        return builder.op("Reshape", together, integers(builder, 0, 0, self.rows, n, 1))

    def _times_global(self, builder: GraphBuilder, values: str) -> str:
        return builder.op("Mul", values, builder.raw_weight(self.global_scale)) if self.global_scale else values


def mxfp4_stack(builder: GraphBuilder, name: str) -> PackedStack:
    """Experts as gpt-oss stores them."""
    codes, scales = builder.stored(f"{name}{BLOCKS}"), builder.stored(f"{name}{SCALES}")
    return PackedStack(
        codes=codes,
        scales=_require_words(scales),
        halved_scales=halved_e8m0,
        global_scale="",
        block=MXFP4_BLOCK,
        rows=codes.shape[1],
        columns=scales.shape[2] * MXFP4_BLOCK,
    )


def nvfp4_stack(builder: GraphBuilder, name: str) -> PackedStack:
    """Experts as recipe nvfp4 stores them."""
    codes, scales = builder.stored(name), builder.stored(f"{name}{BLOCK_SCALES}")
    return PackedStack(
        codes=codes,
        scales=_require_words(scales),
        halved_scales=halved_e4m3,
        global_scale=f"{name}{GLOBAL_SCALE}",
        block=NVFP4_BLOCK,
        rows=codes.shape[1],
        columns=scales.shape[2] * NVFP4_BLOCK,
    )


def dense_stack(builder: GraphBuilder, name: str) -> DenseStack:
    """Experts in one tensor of a floating type."""
    _, rows, columns = builder.stored(name).shape
    return DenseStack(table=builder.weight(name), place_of_E=None, rows=rows, columns=columns)


def gathered_stack(builder: GraphBuilder, scattered: ScatteredStack) -> DenseStack:
    """Experts whose matrices are tensors of their own: views over them, put together where they are several."""
    views = [_in_element(builder, run) for run in scattered.runs]
    table = builder.op("Concat", *views, axis=0) if len(views) > 1 else views[0]
    firsts = np.cumsum([0, *(run.shape[0] for run in scattered.runs[:-1])])
    places = firsts[scattered.run_of_E] + scattered.place_of_E
    return DenseStack(table=table, place_of_E=places.astype(np.int64), rows=scattered.rows, columns=scattered.columns)


def integers(builder: GraphBuilder, *values: int) -> str:
    """A list of numbers for a node that wants it as an input."""
    return builder.constant(np.array(values, np.int64))


def _in_element(builder: GraphBuilder, run: TensorSpec) -> str:
    view = builder.place(run)
    return view if ELEMENTS[run.dtype] == builder.element else builder.cast(view, builder.element)


def _as_float(builder: GraphBuilder, values: str) -> str:
    return values if builder.element == "FLOAT" else builder.cast(values, "FLOAT")


def _as_words(spec: TensorSpec, shape: tuple[int, ...]) -> TensorSpec:
    """Stored bytes as integers of 32 bits."""
    return replace(spec, name=f"{spec.name}.words", dtype="I32", shape=shape)


def _require_words(scales: TensorSpec) -> TensorSpec:
    each = scales.shape[1] * scales.shape[2]
    if each % SCALES_A_WORD:
        raise CheckpointError(
            f"`{scales.name}` has {each} scales a matrix, which are read {SCALES_A_WORD} at a time",
            hint="use precision `fp32`",
        )
    return scales
