"""What TensorRT does with a plugin while it builds an engine, done by hand in a process of its own."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

OPERATIONS = {
    "SUM": lambda a, b: a + b,
    "PROD": lambda a, b: a * b,
    "SUB": lambda a, b: a - b,
    "FLOOR_DIV": lambda a, b: a // b,
    "CEIL_DIV": lambda a, b: -(-a // b),
    "MAX": max,
    "MIN": min,
    "EQUAL": lambda a, b: int(a == b),
    "LESS": lambda a, b: int(a < b),
}
# As the ONNX parser hands attributes over.
FIELD_TYPES = {float: np.float32, int: np.int32}

TORCH_TYPES = {"FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16", "INT32": "int32", "INT64": "int64"}


@dataclass
class Node:
    """A node to build.

    Attributes:
        shapes: By input, numbers and names of open dimensions.
        types: By input, names of `trt.DataType`.
        attributes: As the graph has them.
        opened: Values for the open dimensions, one after the other.
    """

    plugin: str
    shapes: list[tuple[int | str, ...]]
    types: list[str]
    attributes: dict[str, float]
    opened: list[dict[str, int]] = field(default_factory=lambda: [{}])


class Expression:
    """Stands in for `trt.IDimensionExpr`. Sums of constants are no constants: TensorRT does not promise them to be."""

    def __init__(self, operation: str, *operands: Any) -> None:
        self.operation, self.operands = operation, operands

    def is_constant(self) -> bool:
        return self.operation == "constant"

    def get_constant_value(self) -> int:
        assert self.is_constant()
        return self.operands[0]

    def evaluate(self, opened: dict[str, int]) -> int:
        if self.is_constant():
            return self.operands[0]
        if self.operation == "name":
            return opened[self.operands[0]]
        return OPERATIONS[self.operation](*(operand.evaluate(opened) for operand in self.operands))


class Builder:
    """Stands in for `trt.IExprBuilder`."""

    def constant(self, value: int) -> Expression:
        return Expression("constant", value)

    def operation(self, operation: Any, first: Expression, second: Expression) -> Expression:
        assert isinstance(first, Expression) and isinstance(second, Expression)
        return Expression(operation.name, first, second)


class Dimensions(list):
    """Stands in for `trt.DimsExprs`."""

    def __init__(self, length: int) -> None:
        super().__init__([None] * length)


class Registry:
    """Stands in for `trt.IPluginRegistry`."""

    def __init__(self) -> None:
        self.creators: dict[tuple[str, str, str], Any] = {}

    def register_creator(self, creator: Any, namespace: str) -> None:
        self.creators[creator.name, creator.plugin_version, namespace] = creator

    def get_creator(self, name: str, version: str, namespace: str) -> Any:
        return self.creators.get((name, version, namespace))


class Integers(list):
    """Stands in for the setter of a kernel's integers."""

    def __setattr__(self, name: str, value: int) -> None:
        assert name == "nbSymExprs"
        self[:] = [None] * value


REGISTRY = Registry()
VARIANTS: list[Any] = []


def import_bindings() -> None:
    """Replace what the libraries would provide."""
    import tensorrt as trt
    import tensorrt.plugin
    import tensorrt_bindings.plugin._tensor as tensor

    trt.IDimensionExpr, trt.DimsExprs = Expression, Dimensions
    trt.get_plugin_registry = lambda: REGISTRY
    # The real one insists on an expression of the library's.
    tensor.SymExprImpl = lambda symbol: SimpleNamespace(expr=symbol._expr, type="int32")


def version() -> str:
    import tensorrt

    return tensorrt.__version__


def register(architecture_index: int) -> list[tuple[str, str, str]]:
    """Register for one of the architectures, and say what TensorRT's registry holds then."""
    from peagle_trt_plugins.kernel_targets import ARCHITECTURES
    from peagle_trt_plugins.tensorrt_plugin import register_tensorrt_plugins

    register_tensorrt_plugins(ARCHITECTURES[architecture_index])
    return list(REGISTRY.creators)


def build(node: Node) -> dict[str, Any]:
    """Types, shapes, tactics and launches of a node, evaluated; and its kernels as TensorRT stores them."""
    plugin = create(node)
    types, shapes = infer(plugin, node)
    tactics = tune(plugin, node, types)
    return {
        "types": [each.name for each in types],
        "shapes": [evaluate(shapes, opened) for opened in node.opened],
        "tactics": tactics,
        "launches": {tactic: launch(plugin, node, types, tactic) for tactic in tactics or [0]},
    }


def describe(node: Node) -> tuple[list[str], list[list[tuple[int, ...]]]]:
    """Types and shapes of a node's outputs."""
    types, shapes = infer(create(node), node)
    return [each.name for each in types], [evaluate(shapes, opened) for opened in node.opened]


def register_as_a_stranger() -> None:
    """Register as another copy of the package would, which knows nothing of the first."""
    from peagle_trt_plugins import tensorrt_plugin

    present = dict(tensorrt_plugin._registered)
    tensorrt_plugin._registered.clear()
    try:
        register(1)
    finally:
        tensorrt_plugin._registered.update(present)


def execute(node: Node, arrays: list[np.ndarray], tactic: int) -> list[np.ndarray]:
    """Run a node's kernel in Triton's interpreter, launched as TensorRT would launch it."""
    import torch

    from peagle_trt_plugins import triton_kernels
    from tests.support.plugin_torch import to_numpy, to_torch

    compile_nothing()
    plugin = create(node)
    types, shapes = infer(plugin, node)
    assert tactic in (tune(plugin, node, types) or [0])
    found = launch(plugin, node, types, tactic)
    numbers, variant = found["evaluated"][0], VARIANTS[int(found["code"].split(b"//")[1])]
    # Whatever a kernel fails to write must be seen.
    outputs = [
        torch.full(shape, -7, dtype=getattr(torch, TORCH_TYPES[kind.name]))
        for shape, kind in zip(evaluate(shapes, node.opened[0]), types, strict=True)
    ]
    grid = tuple(numbers[f"grid_{axis}"] for axis in "xyz")
    getattr(triton_kernels, variant.kernel)[grid](
        *(to_torch(array) for array in arrays),
        *numbers["integers"],
        *outputs,
        **variant.constants,
        num_warps=numbers["block_x"] // 32,
    )
    return [to_numpy(output) for output in outputs]


def compile_nothing() -> None:
    """The interpreter rules compiling out: what TensorRT stores is then the variant's number, behind an entry."""
    from peagle_trt_plugins import tensorrt_plugin

    def note(variant: Any, architecture: Any) -> tuple[str, int]:
        VARIANTS.append(variant)
        return f".version 8.7\n.visible .entry {variant.kernel}(\n)\n//{len(VARIANTS) - 1}", 0

    tensorrt_plugin.write_plugin_ptx = note


def create(node: Node) -> Any:
    """The plugin that the ONNX parser would create."""
    import tensorrt as trt

    kinds = {np.float32: trt.PluginFieldType.FLOAT32, np.int32: trt.PluginFieldType.INT32}
    fields = []
    for name, value in node.attributes.items():
        kind = FIELD_TYPES[type(value)]
        fields.append(trt.PluginField(name, np.array([value], kind), kinds[kind]))
    creator = REGISTRY.creators[node.plugin, "1", "peagle"]
    request = trt.QuickPluginCreationRequest.PREFER_AOT
    collection = trt.PluginFieldCollection(fields)
    return creator.create_plugin(node.plugin, "peagle", collection, trt.TensorRTPhase.BUILD, request)


def infer(plugin: Any, node: Node) -> tuple[list[Any], list[Dimensions]]:
    import tensorrt as trt

    types = plugin.get_output_data_types(
        [getattr(trt.DataType, name) for name in node.types], [len(shape) for shape in node.shapes]
    )
    inputs = [
        [Expression("constant" if isinstance(size, int) else "name", size) for size in shape] for shape in node.shapes
    ]
    return types, plugin.get_output_shapes(inputs, [], Builder())


def tune(plugin: Any, node: Node, output_types: list[Any]) -> list[int]:
    """The tactics that TensorRT would time; the types it would allow must be the node's."""
    given = described(plugin, node, output_types)
    supported = plugin.get_supported_format_combinations(given, len(node.shapes))
    assert [each.type for each in supported] == [each.desc.type for each in given]
    assert {each.format.name for each in supported} == {"LINEAR"}
    plugin.configure_plugin(given[: len(node.shapes)], given[len(node.shapes) :])
    return sorted(plugin.get_valid_tactics())


def described(plugin: Any, node: Node, output_types: list[Any]) -> list[Any]:
    """Inputs and outputs with the sizes that are known; -1 for the others."""
    import tensorrt as trt

    shapes = [tuple(size if isinstance(size, int) else -1 for size in shape) for shape in node.shapes]
    outputs = [(-1,) * len(each.shape_expr) for each in plugin.output_descs]
    made = []
    for kind, shape in zip(
        [*(getattr(trt.DataType, name) for name in node.types), *output_types], [*shapes, *outputs], strict=True
    ):
        description = trt.PluginTensorDesc()
        description.type, description.format, description.dims = kind, trt.TensorFormat.LINEAR, trt.Dims(shape)
        whole = trt.DynamicPluginTensorDesc()
        whole.desc = description
        made.append(whole)
    return made


def launch(plugin: Any, node: Node, output_types: list[Any], tactic: int) -> dict[str, Any]:
    plugin.set_tactic(tactic)
    given = described(plugin, node, output_types)
    parameters, integers, num_inputs = SimpleNamespace(), Integers(), len(node.shapes)
    inputs = [[Expression("constant" if isinstance(s, int) else "name", s) for s in shape] for shape in node.shapes]
    plugin.get_launch_params(inputs, given, num_inputs, parameters, integers, Builder())
    name, code = plugin.get_kernel(
        [each.desc for each in given[:num_inputs]], [each.desc for each in given[num_inputs:]]
    )
    names = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared_mem")
    evaluated = []
    for opened in node.opened:
        numbers = {each: getattr(parameters, each).expr.evaluate(opened) for each in names}
        evaluated.append({**numbers, "integers": [each.expr.evaluate(opened) for each in integers]})
    return {"kernel": name, "code": code, "evaluated": evaluated}


def evaluate(shapes: list[Dimensions], opened: dict[str, int]) -> list[tuple[int, ...]]:
    return [tuple(expression.evaluate(opened) for expression in shape) for shape in shapes]


def _serve() -> None:
    # The libraries' C++ writes to the standard output too, which is for answers alone.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    import_bindings()
    while True:
        try:
            function, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = globals()[function](*arguments)
        except Exception:
            answer = traceback.format_exc()
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    # Under this name too, so that what is pickled here is of the classes that the test knows.
    sys.modules["tests.support.tensorrt_worker"] = sys.modules["__main__"]
    _serve()
