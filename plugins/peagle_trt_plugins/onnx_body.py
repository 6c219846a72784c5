"""Writes the body of an ONNX function, node by node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from peagle_trt_plugins.ports import DOMAIN, VERSION, Attribute, Port

if TYPE_CHECKING:
    import onnx

OPSET = 23


class FunctionBody:
    """Nodes of the function, in order."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []

    def add(self, op_type: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """A node with one output, whose name is returned."""
        from onnx import helper

        self.nodes.append(helper.make_node(op_type, inputs, [output], **attributes))
        return output

    def add_with_attribute(
        self, op_type: str, inputs: list[str], output: str, name: str, source: str, kind: int
    ) -> str:
        """A node whose attribute `name` is the function's attribute `source`."""
        from onnx import AttributeProto, helper

        node = helper.make_node(op_type, inputs, [output])
        reference = AttributeProto()
        reference.name, reference.ref_attr_name, reference.type = name, source, kind  # type: ignore[assignment]
        node.attribute.append(reference)
        self.nodes.append(node)
        return output

    def ints(self, values: list[int], output: str) -> str:
        """A constant list of int64."""
        return self.add("Constant", [], output, value_ints=values)

    def int32(self, value: int, output: str) -> str:
        """A constant scalar of int32."""
        from onnx import TensorProto, helper

        tensor = helper.make_tensor(output, TensorProto.INT32, [], [value])
        return self.add("Constant", [], output, value=tensor)

    def int64(self, value: int, output: str) -> str:
        """A constant scalar of int64."""
        from onnx import TensorProto, helper

        tensor = helper.make_tensor(output, TensorProto.INT64, [], [value])
        return self.add("Constant", [], output, value=tensor)

    def float32(self, value: float, output: str) -> str:
        """A constant scalar of float32."""
        from onnx import TensorProto, helper

        tensor = helper.make_tensor(output, TensorProto.FLOAT, [], [value])
        return self.add("Constant", [], output, value=tensor)

    def function(
        self, name: str, inputs: tuple[Port, ...], outputs: tuple[Port, ...], attributes: tuple[Attribute, ...]
    ) -> onnx.FunctionProto:
        """The function that a contract names, with the nodes written so far."""
        from onnx import helper

        return helper.make_function(
            domain=DOMAIN,
            fname=name,
            inputs=[port.name for port in inputs],
            outputs=[port.name for port in outputs],
            nodes=self.nodes,
            opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, VERSION)],
            attributes=[attribute.name for attribute in attributes],
        )
