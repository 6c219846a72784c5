"""ONNX function bodies of `peagle::SelectDraft` and `peagle::SelectDraftTopK`, in standard operators of opset 23."""

from __future__ import annotations

from typing import TYPE_CHECKING

from peagle_trt_plugins import contract_select_draft as contract
from peagle_trt_plugins.onnx_body import FunctionBody

if TYPE_CHECKING:
    import onnx

# Of float32; written out, since onnx stores a constant's decimal digits and numpy's finfo would bring numpy along.
_HIGHEST = 3.4028234663852886e38


def select_draft_function() -> onnx.FunctionProto:
    """The function to add to a model that holds a `SelectDraft` node."""
    from onnx import TensorProto

    body = FunctionBody()
    compute_logits(body)
    body.add("ArgMax", ["logits_BKD"], "best_BK", axis=-1, keepdims=0, select_last_index=0)
    body.add("Gather", ["draft_to_target", "best_BK"], "target_ids_BK", axis=0)
    body.add("Cast", ["target_ids_BK"], "draft_token_ids", to=TensorProto.INT32)
    return body.function(contract.NAME, contract.INPUTS, contract.OUTPUTS, ())


def select_draft_top_k_function() -> onnx.FunctionProto:
    """The function to add to a model that holds a `SelectDraftTopK` node."""
    from onnx import AttributeProto, TensorProto, helper

    body = FunctionBody()
    compute_logits(body)
    body.add_with_attribute("Constant", [], "candidates_M", "value_int", "candidates", AttributeProto.INT)
    body.ints([1], "axis1")
    body.ints([2], "axis2")
    body.ints([-1], "flat")
    body.add("Reshape", ["candidates_M", "flat"], "candidates_1")
    # TopK gives the lower index first among equals: the contract's rule.
    top = helper.make_node("TopK", ["logits_BKD", "candidates_1"], ["values_BKM", "best_BKM"], axis=-1, sorted=1)
    body.nodes.append(top)
    body.add("Gather", ["draft_to_target", "best_BKM"], "target_ids_BKM", axis=0)
    body.add("Cast", ["target_ids_BKM"], "candidate_ids", to=TensorProto.INT32)
    body.add("ReduceMax", ["values_BKM", "axis2"], "largest_BK1", keepdims=1)
    body.add("Sub", ["values_BKM", "largest_BK1"], "below_BKM")
    body.add("Unsqueeze", ["temperature", "axis1"], "temperature_B1")
    body.add("Unsqueeze", ["temperature_B1", "axis2"], "temperature_B11")
    body.add("Div", ["below_BKM", "temperature_B11"], "scaled_BKM")
    body.add("Softmax", ["scaled_BKM"], "probabilities", axis=-1)
    return body.function(contract.TOP_K_NAME, contract.TOP_K_INPUTS, contract.TOP_K_OUTPUTS, contract.TOP_K_ATTRIBUTES)


def compute_logits(body: FunctionBody, *, rounds_logits: bool = False) -> None:
    """logits_BKD: float32 and finite; a NaN becomes the lowest number. `rounds_logits` as in onnx_select_stages.py."""
    from onnx import TensorProto

    body.ints([2], "row_axis")
    body.add("Unsqueeze", ["sample_rows", "row_axis"], "rows_BK1")
    body.add("Cast", ["rows_BK1"], "indices_BK1", to=TensorProto.INT64)
    body.add("GatherND", ["hidden", "indices_BK1"], "sampled_BKH", batch_dims=1)
    if rounds_logits:
        body.add("Transpose", ["lm_head"], "weight_HD", perm=[1, 0])
        body.add("MatMul", ["sampled_BKH", "weight_HD"], "rounded_BKD")
        body.add("Cast", ["rounded_BKD"], "raw_BKD", to=TensorProto.FLOAT)
    else:
        body.add("Cast", ["sampled_BKH"], "rows_BKH", to=TensorProto.FLOAT)
        body.add("Cast", ["lm_head"], "weight_DH", to=TensorProto.FLOAT)
        body.add("Transpose", ["weight_DH"], "weight_HD", perm=[1, 0])
        body.add("MatMul", ["rows_BKH", "weight_HD"], "raw_BKD")
    body.float32(-_HIGHEST, "lowest")
    body.float32(_HIGHEST, "highest")
    body.add("IsNaN", ["raw_BKD"], "is_damaged_BKD")
    body.add("Where", ["is_damaged_BKD", "lowest", "raw_BKD"], "numbers_BKD")
    body.add("Clip", ["numbers_BKD", "lowest", "highest"], "logits_BKD")
