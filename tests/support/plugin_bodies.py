"""Runs an ONNX function body in ONNX Runtime, as a model of one node."""

from __future__ import annotations

import numpy as np

from peagle_trt_plugins import contract, contract_select_draft
from peagle_trt_plugins.onnx_body import OPSET
from peagle_trt_plugins.onnx_function import parallel_draft_function
from peagle_trt_plugins.onnx_select_draft import select_draft_function, select_draft_top_k_function
from peagle_trt_plugins.onnx_select_stages import select_draft_functions, select_draft_top_k_functions
from peagle_trt_plugins.ports import DOMAIN, TENSORRT_ATTRIBUTES, VERSION, Port
from tests.support.plugin_cases import Arrays, DraftCase, SelectCase


def run_case(case: DraftCase | SelectCase) -> list[np.ndarray]:
    if isinstance(case, DraftCase):
        function = parallel_draft_function(widens_embedding=case.table_dtype is not None)
        attributes = {"epsilon": case.attributes()["epsilon"], "norm_before_residual": int(case.norm_before_residual)}
        return run_body((function,), case.inputs(), contract.OUTPUTS, attributes)
    if case.candidates:
        function = select_draft_top_k_function()
        return run_body((function,), case.inputs(), contract_select_draft.TOP_K_OUTPUTS, case.attributes())
    return run_body((select_draft_function(),), case.inputs(), contract_select_draft.OUTPUTS, {})


def run_staged_case(case: SelectCase, *, rounds_logits: bool = False) -> list[np.ndarray]:
    if case.candidates:
        functions = select_draft_top_k_functions(candidates=case.candidates, rounds_logits=rounds_logits)
        return run_body(functions, case.inputs(), contract_select_draft.TOP_K_OUTPUTS, case.attributes())
    functions = select_draft_functions(rounds_logits=rounds_logits)
    return run_body(functions, case.inputs(), contract_select_draft.OUTPUTS, {})


def run_body(functions: tuple, inputs: Arrays, outputs: tuple[Port, ...], attributes: dict) -> list[np.ndarray]:
    """`functions`: the node's own first, then those it holds."""
    import onnx
    import onnxruntime
    from onnx import helper

    node = helper.make_node(
        functions[0].name,
        list(inputs),
        [port.name for port in outputs],
        domain=DOMAIN,
        **attributes,
        **TENSORRT_ATTRIBUTES,
    )
    given = [helper.make_tensor_value_info(name, _element(array), array.shape) for name, array in inputs.items()]
    first_float = next(array for name, array in inputs.items() if name in {"fused_hidden", "hidden"})
    elements = {"float": _element(first_float), "float32": onnx.TensorProto.FLOAT, "int32": onnx.TensorProto.INT32}
    made = [helper.make_tensor_value_info(port.name, elements[port.element], list(port.dims)) for port in outputs]
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, VERSION)]
    graph = helper.make_graph([node], "case", given, made)
    model = helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=11)
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    values = {
        name: onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(_plain(array), _element(array))
        for name, array in inputs.items()
    }
    return [value.numpy() for value in session.run_with_ort_values([port.name for port in outputs], values)]


def _plain(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def _element(array: np.ndarray) -> int:
    from onnx import helper

    return helper.np_dtype_to_tensor_dtype(array.dtype)
