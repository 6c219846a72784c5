"""Writes an ONNX graph node by node; weights stay where they are on disk and are pointed at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from peagle_trt.spec import TensorSpec

if TYPE_CHECKING:
    import onnx

OPSET = 23
IR_VERSION = 11
MICROSOFT = "com.microsoft"

Element = Literal["FLOAT", "FLOAT16", "BFLOAT16"]
"""What a graph computes in, named as in `onnx.TensorProto`."""
ELEMENTS: dict[str, Element] = {"F32": "FLOAT", "F16": "FLOAT16", "BF16": "BFLOAT16"}
"""By the name that safetensors gives it."""

Dims = Sequence[int | str]
Value = tuple[str, str, Dims]
"""Name, element type as in `onnx.TensorProto`, and dimensions."""

MAX_WIDENED_BYTES = 1 << 28
"""Largest float32 copy of a weight that a pass makes at once: a larger matrix is widened in blocks of rows, so that an
output layer of 201,088 x 2,880 takes 0.25 GiB while it is used instead of 2.3."""

_WIDENED = ("BF16", "F16")


class GraphBuilder:
    """Collects nodes, weights, inputs and outputs of one model.

    Args:
        name: Name of the graph.
        stored: Weights the graph may point at, each with the file, offset and length of its bytes.
        opset: Version of the standard operators.
        element: What the graph computes in; floating weights of another type are turned into it where they are used.
    """

    def __init__(
        self, name: str, stored: Mapping[str, TensorSpec], *, opset: int = OPSET, element: Element = "FLOAT"
    ) -> None:
        self.element: Element = element
        self._opset = opset
        self._name = name
        self._stored = stored
        self._nodes: list[onnx.NodeProto] = []
        self._first_nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._functions: dict[str, onnx.FunctionProto] = {}
        self._widened: dict[str, str] = {}
        self._scope = ""
        self._count = self._num_nodes = 0

    def input(self, name: str, element: str, dims: Dims) -> str:
        """Declare an input; `element` is a name of `onnx.TensorProto`, such as FLOAT or INT32."""
        self._inputs.append(_value_info(name, element, dims))
        return name

    def output(self, name: str, element: str, dims: Dims) -> None:
        """Declare an output that a node already writes under this name."""
        self._outputs.append(_value_info(name, element, dims))

    def op(self, op_type: str, *inputs: str, domain: str = "", output: str | None = None, **attributes: Any) -> str:
        """Append a node with one output; returns its name, `output` if given."""
        return self.ops(op_type, *inputs, outputs=[output or self.unique(op_type)], domain=domain, **attributes)[0]

    def cast(self, value: str, element: str, *, output: str | None = None) -> str:
        """Append a Cast to a type named as in `onnx.TensorProto`."""
        from onnx import TensorProto

        return self.op("Cast", value, output=output, to=TensorProto.DataType.Value(element))

    def ops(
        self, op_type: str, *inputs: str, outputs: int | Sequence[str], domain: str = "", **attributes: Any
    ) -> list[str]:
        """Append a node with several outputs, named or counted; an empty name leaves an output out."""
        from onnx import helper

        names = [self.unique(op_type) for _ in range(outputs)] if isinstance(outputs, int) else list(outputs)
        name = f"{self._scope}{op_type}_{self._num_nodes}"
        self._num_nodes += 1
        self._nodes.append(helper.make_node(op_type, inputs, names, name=name, domain=domain, **attributes))
        return names

    def weight(self, name: str) -> str:
        """A stored weight by our name, in the type that the graph computes in; turned into it once however often it
        is used.

        Raises:
            KeyError: Nothing of that name is stored.
        """
        if not self.is_turned(name):
            return self.raw_weight(name)
        if name not in self._widened:
            self._widened[name] = self._widen(self.raw_weight(name))
        return self._widened[name]

    def raw_weight(self, name: str) -> str:
        """A stored weight by our name in the type it is stored in.

        Raises:
            KeyError: Nothing of that name is stored.
        """
        return self._place(name, self._stored[name])

    def is_cut(self, name: str) -> bool:
        """Whether a stored matrix is too large to be widened at once."""
        spec = self._stored[name]
        return spec.dtype in _WIDENED and _rows_at_once(spec) < spec.shape[0]

    def weight_blocks(self, name: str) -> Iterator[str]:
        """A stored matrix as float32 blocks of rows, none over `MAX_WIDENED_BYTES`.

        Raises:
            KeyError: Nothing of that name is stored.
        """
        for block in _row_blocks(self._stored[name]):
            yield self._widen(self._place(block.name, block))

    def rows(self, table: str, indices: str) -> str:
        """Rows of a stored table in the type that the graph computes in; only the rows are turned into it."""
        found = self.op("Gather", self.raw_weight(table), indices, axis=0)
        return self.cast(found, self.element) if self.is_turned(table) else found

    def stored(self, name: str) -> TensorSpec:
        """What is stored under a name, and where.

        Raises:
            KeyError: Nothing of that name is stored.
        """
        return self._stored[name]

    def place(self, spec: TensorSpec) -> str:
        """A run of stored bytes as a weight of its own, under the name it carries; added once."""
        return self._place(spec.name, spec)

    def is_turned(self, name: str) -> bool:
        """Whether a stored weight is of another floating type than the graph computes in."""
        return ELEMENTS.get(self._stored[name].dtype, self.element) != self.element

    def has_weight(self, name: str) -> bool:
        """Whether a weight of that name is stored."""
        return name in self._stored

    def constant(self, values: NDArray[np.generic]) -> str:
        """A small constant kept inside the graph."""
        from onnx import numpy_helper

        name = self.unique("constant")
        self._initializers[name] = numpy_helper.from_array(values, name)
        return name

    def numbers(self, values: NDArray[np.generic]) -> str:
        """A small constant in the type that the graph computes in."""
        return self.constant(values.astype(_numpy_type(self.element)))

    def function(self, function: onnx.FunctionProto) -> None:
        """Add the body of a custom node."""
        self._functions[f"{function.domain}::{function.name}"] = function

    def subgraph(self, name: str, inputs: Sequence[Value], emit: Callable[[], Sequence[Value]]) -> onnx.GraphProto:
        """The body of a control-flow node, which may use everything that is outside of it.

        Args:
            name: Name of the body.
            inputs: Its own inputs.
            emit: Appends its nodes and returns its outputs.
        """
        from onnx import helper

        outer_nodes, outer_widened, outer_scope = self._nodes, self._widened, self._scope
        # What the body widens is the body's alone.
        self._nodes, self._widened, self._scope = [], dict(outer_widened), f"{name}/"
        try:
            outputs = emit()
            given, made = ([_value_info(*value) for value in values] for values in (inputs, outputs))
            return helper.make_graph(self._nodes, name, given, made)
        finally:
            self._nodes, self._widened, self._scope = outer_nodes, outer_widened, outer_scope

    def model(self) -> onnx.ModelProto:
        """The finished model, checked by the ONNX checker."""
        from onnx import helper

        graph = helper.make_graph(
            self._first_nodes + self._nodes, self._name, self._inputs, self._outputs, list(self._initializers.values())
        )
        domains = {"": self._opset, MICROSOFT: 1} | {function.domain: 1 for function in self._functions.values()}
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid(domain, version) for domain, version in domains.items()],
            functions=list(self._functions.values()),
            ir_version=IR_VERSION,
            producer_name="peagle-trt",
        )

    def unique(self, stem: str) -> str:
        """A name nobody else has."""
        self._count += 1
        return f"{stem}.{self._count}"

    def _widen(self, raw: str) -> str:
        """A Cast that runs just before the node that uses it.

        ONNX Runtime 1.32 orders nodes by walking back from the outputs, from every node to the input with the highest
        number first. A Cast numbered after the rows that its product reads would run before all that lead up to them,
        and with it those of every layer; so they come first.
        """
        others, self._nodes = self._nodes, self._first_nodes
        try:
            return self.cast(raw, self.element)
        finally:
            self._nodes = others

    def _place(self, name: str, spec: TensorSpec) -> str:
        if name not in self._initializers:
            self._initializers[name] = _external(spec, name)
        return name


def _numpy_type(element: Element) -> Any:
    """What numpy calls an element type; it borrows bfloat16."""
    if element == "BFLOAT16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return np.float32 if element == "FLOAT" else np.float16


def _rows_at_once(spec: TensorSpec) -> int:
    assert spec.location is not None, "weights of a graph lie on disk"
    row_bytes = spec.location.length_bytes // spec.shape[0]
    return max(1, MAX_WIDENED_BYTES // (2 * row_bytes))


def _row_blocks(spec: TensorSpec) -> Iterator[TensorSpec]:
    """Runs of a tensor's rows, in order; they share its bytes."""
    assert spec.location is not None, "weights of a graph lie on disk"
    row_bytes = spec.location.length_bytes // spec.shape[0]
    for first in range(0, spec.shape[0], _rows_at_once(spec)):
        rows = min(_rows_at_once(spec), spec.shape[0] - first)
        location = replace(
            spec.location, offset_bytes=spec.location.offset_bytes + first * row_bytes, length_bytes=rows * row_bytes
        )
        name = f"{spec.name}.rows.{first}"
        yield TensorSpec(name=name, dtype=spec.dtype, shape=(rows, *spec.shape[1:]), location=location)


def _value_info(name: str, element: str, dims: Dims) -> onnx.ValueInfoProto:
    from onnx import TensorProto, helper

    return helper.make_tensor_value_info(name, TensorProto.DataType.Value(element), list(dims))


def _external(spec: TensorSpec, name: str) -> onnx.TensorProto:
    from onnx import TensorProto

    elements = {
        "F32": TensorProto.FLOAT,
        "F16": TensorProto.FLOAT16,
        "BF16": TensorProto.BFLOAT16,
        "I64": TensorProto.INT64,
        "I32": TensorProto.INT32,
        "U8": TensorProto.UINT8,
        "F8_E4M3": TensorProto.FLOAT8E4M3FN,
        "F4": TensorProto.FLOAT4E2M1,
    }
    if spec.location is None:
        raise ValueError(f"weight `{spec.name}` has no place on disk")
    tensor = TensorProto(name=name, data_type=elements[spec.dtype], dims=spec.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (
        ("location", spec.location.path.name),
        ("offset", str(spec.location.offset_bytes)),
        ("length", str(spec.location.length_bytes)),
    ):
        tensor.external_data.add(key=key, value=value)
    return tensor
