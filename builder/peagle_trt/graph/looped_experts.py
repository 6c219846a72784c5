"""A mixture of experts over weights that stay in the checkpoint: a loop over the experts that were chosen.

Each turn copies one expert's bytes out of the mapped file, widens them, multiplies the rows that chose it, and lets
them go: memory holds one expert at a time, and what nobody chose is never read. A prompt's rows go through each expert
together. MXFP4 codes are looked up, two values a byte, and multiplied by their scale, which is exact in float32; ONNX
has a type for them (FLOAT4E2M1), but ONNX Runtime 1.32 has no kernel that reads it on a CPU.

Letters: T rows, n rows that chose an expert, E experts, k chosen ones, I width of an expert, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from peagle_trt.graph.builder import GraphBuilder, Value
from peagle_trt.graph.experts import activate, choose, router_logits
from peagle_trt.quant.in_place import BLOCKS, SCALES, expert_matrix
from peagle_trt.spec import ExpertsConfig, TensorSpec

if TYPE_CHECKING:
    import onnx

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E8M0_BIAS = 127


def has_experts_in_place(builder: GraphBuilder, prefix: str) -> bool:
    """Whether a layer's experts are stored as a checkpoint has them."""
    return builder.has_weight(f"{prefix}experts_gate_up_proj{BLOCKS}") or builder.has_weight(
        prefix + expert_matrix(0, "gate")
    )


def looped_experts(builder: GraphBuilder, experts: ExpertsConfig, rows: str, prefix: str) -> str:
    """Router and experts of one layer.

    Args:
        builder: Graph under construction.
        experts: The experts.
        rows: [T, H], normalised.
        prefix: `layers.{i}.`, of the weights.

    Returns:
        [T, H].
    """
    hidden_size = builder.stored(f"{prefix}router").shape[1]
    shares, chosen = choose(builder, experts, router_logits(builder, rows, prefix))
    flat = builder.op("Reshape", chosen, _integers(builder, -1))
    distinct = builder.op("Unique", flat, sorted=1)
    turns = builder.op("Squeeze", builder.op("Shape", distinct))
    shape = builder.op("Shape", rows)
    start = builder.op("Expand", builder.constant(np.zeros((1, 1), np.float32)), shape)
    stacks = _open_stacks(builder, experts, prefix, hidden_size)
    turn, going, total = (builder.unique(name) for name in ("turn", "going", "total"))

    def emit() -> Sequence[Value]:
        expert = builder.op("Gather", distinct, turn)
        indices, weights = _rows_of(builder, expert, shares, chosen)
        mixed = _run_expert(builder, experts, stacks, expert, builder.op("Gather", rows, indices))
        weighted = builder.op("Mul", mixed, weights)
        places = builder.op("Unsqueeze", indices, _integers(builder, 1))
        added = builder.op("ScatterND", total, places, weighted, reduction="add")
        return ((builder.op("Identity", going), "BOOL", []), (added, "FLOAT", ["T", hidden_size]))

    inputs: list[Value] = [(turn, "INT64", []), (going, "BOOL", []), (total, "FLOAT", ["T", hidden_size])]
    body = builder.subgraph(f"{prefix}expert", inputs, emit)
    return builder.op("Loop", turns, "", start, body=body)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PackedStack:
    """Matrices of all experts as MXFP4 blocks and scales."""

    name: str
    rows: int
    columns: int

    def matrix(self, builder: GraphBuilder, expert: str) -> str:
        """One expert's matrix as float32, [rows, columns]."""
        codes = builder.op("Gather", builder.raw_weight(f"{self.name}{BLOCKS}"), expert, axis=0)
        pairs = builder.op("Gather", builder.constant(_pairs_of_values()), builder.cast(codes, "INT32"), axis=0)
        scales = builder.op("Gather", builder.raw_weight(f"{self.name}{SCALES}"), expert, axis=0)
        factors = builder.op("Gather", builder.constant(_powers_of_two()), builder.cast(scales, "INT32"), axis=0)
        # A byte holds two values.
        values_per_block = 2 * builder.stored(f"{self.name}{BLOCKS}").shape[-1]
        by_block = builder.op("Reshape", pairs, _integers(builder, -1, values_per_block))
        scaled = builder.op("Mul", by_block, builder.op("Reshape", factors, _integers(builder, -1, 1)))
        return builder.op("Reshape", scaled, _integers(builder, self.rows, self.columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScatteredStack:
    """Matrices that are tensors of their own; where they lie side by side, one view covers them.

    A file's writer puts a layer's matrices one behind another, in the order of their names, so that a layer has one
    run, or two where it was cut between files.

    Attributes:
        name: Stem of the views' names.
        runs: Views, [matrices, rows * columns] each.
        run_of_E: Run that an expert's matrix is in.
        place_of_E: Its place there.
        rows: Rows of a matrix.
        columns: Columns of a matrix.
    """

    name: str
    runs: tuple[TensorSpec, ...]
    run_of_E: NDArray[np.int64]
    place_of_E: NDArray[np.int64]
    rows: int
    columns: int

    def matrix(self, builder: GraphBuilder, expert: str) -> str:
        """One expert's matrix as float32, [rows, columns]."""
        place = builder.op("Gather", builder.constant(self.place_of_E), expert)
        run = builder.op("Gather", builder.constant(self.run_of_E), expert)
        found = self._pick(builder, range(len(self.runs)), run, place)
        return builder.op("Reshape", found, _integers(builder, self.rows, self.columns))

    def _pick(self, builder: GraphBuilder, runs: Sequence[int], run: str, place: str) -> str:
        """A matrix out of the run it is in, as float32: halves of `runs` are told apart until one is left."""
        if len(runs) == 1:
            found = builder.op("Gather", builder.place(self.runs[runs[0]]), place, axis=0)
            return found if self.runs[runs[0]].dtype == "F32" else builder.cast(found, "FLOAT")
        middle = len(runs) // 2
        halves = (runs[:middle], runs[middle:])
        is_early = builder.op("Less", run, builder.constant(np.array(halves[1][0], np.int64)))

        def branch(half: Sequence[int]) -> onnx.GraphProto:
            def emit() -> list[Value]:
                return [(self._pick(builder, half, run, place), "FLOAT", [self.rows * self.columns])]

            return builder.subgraph(builder.unique(f"{self.name}.run"), [], emit)

        early, late = (branch(half) for half in halves)
        return builder.op("If", is_early, then_branch=early, else_branch=late)


_Stack = _PackedStack | ScatteredStack


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stacks:
    """Where a layer's experts lie.

    Attributes:
        gate_up: One matrix with rows of gate and up in turns, or gate and up apart.
        down: The way back.
        gate_up_bias: Stored name, or "".
        down_bias: Stored name, or "".
    """

    gate_up: tuple[_Stack, ...]
    down: _Stack
    gate_up_bias: str
    down_bias: str


def _open_stacks(builder: GraphBuilder, experts: ExpertsConfig, prefix: str, hidden_size: int) -> _Stacks:
    width = experts.intermediate_size
    biases = [f"{prefix}experts_{part}_bias" if experts.has_expert_bias else "" for part in ("gate_up", "down")]
    if builder.has_weight(f"{prefix}experts_gate_up_proj{BLOCKS}"):
        gate_up: tuple[_Stack, ...] = (
            _PackedStack(name=f"{prefix}experts_gate_up_proj", rows=2 * width, columns=hidden_size),
        )
        down: _Stack = _PackedStack(name=f"{prefix}experts_down_proj", rows=hidden_size, columns=width)
    else:
        apart = scattered_stacks(builder, experts.num_experts, prefix)
        gate_up, down = (apart["gate"], apart["up"]), apart["down"]
    return _Stacks(gate_up=gate_up, down=down, gate_up_bias=biases[0], down_bias=biases[1])


def _run_expert(builder: GraphBuilder, experts: ExpertsConfig, stacks: _Stacks, expert: str, rows_nH: str) -> str:
    """What one expert makes of its rows, [n, H]."""
    products = [builder.op("Gemm", rows_nH, stack.matrix(builder, expert), transB=1) for stack in stacks.gate_up]
    if len(products) == 2:
        # Gate and up in turns, as they are where they are stored together.
        columns = [builder.op("Unsqueeze", product, _integers(builder, 2)) for product in products]
        together = builder.op("Concat", *columns, axis=2)
        products = [builder.op("Reshape", together, _integers(builder, -1, 2 * experts.intermediate_size))]
    gate_up = _add_bias(builder, products[0], stacks.gate_up_bias, expert)
    # `activate` takes [T, k, 2I].
    one = _integers(builder, 1)
    activated = builder.op("Squeeze", activate(builder, experts, builder.op("Unsqueeze", gate_up, one)), one)
    product = builder.op("Gemm", activated, stacks.down.matrix(builder, expert), transB=1)
    return _add_bias(builder, product, stacks.down_bias, expert)


def _add_bias(builder: GraphBuilder, product: str, bias: str, expert: str) -> str:
    return builder.op("Add", product, builder.rows(bias, expert)) if bias else product


def _rows_of(builder: GraphBuilder, expert: str, shares_Tk: str, chosen_Tk: str) -> tuple[str, str]:
    """Indices of the rows that chose an expert, [n], and the share that each gives it, [n, 1]."""
    matches = builder.op("Equal", chosen_Tk, expert)
    counts = builder.op("ReduceSum", builder.cast(matches, "INT32"), _integers(builder, 1), keepdims=0)
    indices = builder.op("Squeeze", builder.op("NonZero", counts), _integers(builder, 0))
    nothing = builder.constant(np.array(0, np.float32))
    given = builder.op("Where", matches, shares_Tk, nothing)
    weights = builder.op("ReduceSum", given, _integers(builder, 1), keepdims=1)
    return indices, builder.op("Gather", weights, indices)


def scattered_stacks(builder: GraphBuilder, num_experts: int, prefix: str) -> dict[str, ScatteredStack]:
    """Views over the matrices of all three projections, which have the same number of elements."""
    names = {(e, part): prefix + expert_matrix(e, part) for e in range(num_experts) for part in ("gate", "up", "down")}
    specs = {key: builder.stored(name) for key, name in names.items()}
    runs, places = _runs(prefix, specs)
    stacks = {}
    for part in ("gate", "up", "down"):
        found = [places[expert, part] for expert in range(num_experts)]
        rows, columns = specs[0, part].shape
        stacks[part] = ScatteredStack(
            name=f"{prefix}{part}",
            runs=runs,
            run_of_E=np.array([run for run, _ in found], np.int64),
            place_of_E=np.array([place for _, place in found], np.int64),
            rows=rows,
            columns=columns,
        )
    return stacks


_Key = tuple[int, str]


def _runs(prefix: str, specs: dict[_Key, TensorSpec]) -> tuple[tuple[TensorSpec, ...], dict[_Key, tuple[int, int]]]:
    """Views that cover the tensors, and where each tensor is: its view and its place there."""
    runs: list[TensorSpec] = []
    places: dict[_Key, tuple[int, int]] = {}
    for key, spec in sorted(specs.items(), key=lambda item: _address(item[1])):
        if runs and _follows(runs[-1], spec):
            runs[-1] = _extended(runs[-1], spec)
        else:
            flat = (1, spec.shape[0] * spec.shape[1])
            runs.append(replace(spec, name=f"{prefix}experts.run.{len(runs)}", shape=flat))
        places[key] = (len(runs) - 1, runs[-1].shape[0] - 1)
    return tuple(runs), places


def _address(spec: TensorSpec) -> tuple[str, int]:
    assert spec.location is not None, "weights of a graph lie on disk"
    return str(spec.location.path), spec.location.offset_bytes


def _follows(run: TensorSpec, spec: TensorSpec) -> bool:
    path, offset = _address(run)
    assert run.location is not None
    return run.dtype == spec.dtype and _address(spec) == (path, offset + run.location.length_bytes)


def _extended(run: TensorSpec, spec: TensorSpec) -> TensorSpec:
    assert run.location is not None
    assert spec.location is not None
    length_bytes = run.location.length_bytes + spec.location.length_bytes
    location = replace(run.location, length_bytes=length_bytes)
    return replace(run, shape=(run.shape[0] + 1, run.shape[1]), location=location)


def _pairs_of_values() -> NDArray[np.float32]:
    """The two values of every byte of MXFP4 codes, [256, 2], the low half first.

    Source: OCP Microscaling Formats v1.0 (E2M1); gpt-oss's own order of halves.
    """
    values = np.array([*_E2M1, *(-value for value in _E2M1)], np.float32)
    codes = np.arange(256)
    return np.stack([values[codes & 15], values[codes >> 4]], axis=1)


def _powers_of_two() -> NDArray[np.float32]:
    """The scale of every E8M0 code, [256]; the last code is no number.

    Source: OCP Microscaling Formats v1.0 (E8M0).
    """
    powers = np.ldexp(np.float32(1), np.arange(255) - _E8M0_BIAS)
    return np.append(powers, np.float32(np.nan)).astype(np.float32)


def _integers(builder: GraphBuilder, *values: int) -> str:
    return builder.constant(np.array(values, np.int64))
