"""ONNX function body of `peagle::ParallelDraft`: what a runtime without the plugin executes in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from peagle_trt_plugins import contract
from peagle_trt_plugins.onnx_body import OPSET as OPSET
from peagle_trt_plugins.onnx_body import FunctionBody

if TYPE_CHECKING:
    import onnx


def parallel_draft_function(*, widens_embedding: bool = False) -> onnx.FunctionProto:
    """The function to add to a model that holds a `ParallelDraft` node. Uses standard operators of opset 23 only.

    Args:
        widens_embedding: The embedding table is of another floating type than the other ports; the rows that are
            read are turned into theirs.
    """
    body = FunctionBody()
    _lay_out_rows(body)
    _fill_tokens(body)
    _fill_hidden(body)
    _norm_and_concatenate(body, widens_embedding=widens_embedding)
    return body.function(contract.NAME, contract.INPUTS, contract.OUTPUTS, contract.ATTRIBUTES)


def _lay_out_rows(body: FunctionBody) -> None:
    """batch, slots and width; is_real_BW, is_live_BW, positions, sample_rows."""
    from onnx import TensorProto

    body.int32(0, "zero")
    body.ints([0], "axis0")
    body.ints([1], "axis1")
    body.ints([2], "axis2")
    body.add("Shape", ["next_token_ids"], "batch_1", start=0, end=1)
    body.add("Shape", ["next_token_ids"], "rows_1", start=1, end=2)
    body.add("Shape", ["mask_token_ids"], "slots_1", start=0, end=1)
    body.add("Sub", ["slots_1", "axis1"], "masks_1")
    body.add("Add", ["rows_1", "masks_1"], "width_1")
    # Counted in int64, then cast: where all dims are static, ONNX Runtime 1.32 loses a cast in front of `Range`.
    body.add("Squeeze", ["width_1"], "width")
    body.add("Squeeze", ["slots_1"], "slots_i64")
    body.int64(0, "first")
    body.int64(1, "step")
    body.add("Range", ["first", "width", "step"], "row_i64_W")
    body.add("Range", ["first", "slots_i64", "step"], "slot_i64_K")
    body.add("Cast", ["row_i64_W"], "row_W", to=TensorProto.INT32)
    body.add("Cast", ["slot_i64_K"], "slot_K", to=TensorProto.INT32)
    body.add("Cast", ["slots_i64"], "slots", to=TensorProto.INT32)
    body.add("Unsqueeze", ["num_accepted", "axis1"], "accepted_B1")
    body.add("Unsqueeze", ["start_positions", "axis1"], "start_B1")
    body.add("Add", ["accepted_B1", "slots"], "end_B1")
    body.add("LessOrEqual", ["row_W", "accepted_B1"], "is_real_BW")
    body.add("Less", ["row_W", "end_B1"], "is_live_BW")
    body.add("Add", ["start_B1", "row_W"], "moved_BW")
    body.add("Where", ["is_live_BW", "moved_BW", "zero"], "positions")
    body.add("Add", ["accepted_B1", "slot_K"], "sample_rows")


def _fill_tokens(body: FunctionBody) -> None:
    """token_ids_BW."""
    body.add("Concat", ["batch_1", "masks_1"], "tail_shape", axis=0)
    body.add("Expand", ["zero", "tail_shape"], "tail_BM")
    body.add("Concat", ["next_token_ids", "tail_BM"], "padded_ids_BW", axis=1)
    body.add("Gather", ["mask_token_ids", "axis0"], "mask_id_1", axis=0)
    body.add("Where", ["is_live_BW", "mask_id_1", "zero"], "unreal_ids_BW")
    body.add("Where", ["is_real_BW", "padded_ids_BW", "unreal_ids_BW"], "token_ids_BW")


def _fill_hidden(body: FunctionBody) -> None:
    """hidden_BWH; a rejected row's content is selected away, so that not even a NaN in it can arrive."""
    body.add("Shape", ["fused_mask_hidden"], "width_H")
    body.add("Concat", ["batch_1", "masks_1", "width_H"], "tail_hidden_shape", axis=0)
    body.add("Sub", ["fused_mask_hidden", "fused_mask_hidden"], "zero_hidden")
    body.add("Expand", ["zero_hidden", "tail_hidden_shape"], "tail_BMH")
    body.add("Concat", ["fused_hidden", "tail_BMH"], "padded_hidden_BWH", axis=1)
    body.add("Unsqueeze", ["is_live_BW", "axis2"], "is_live_BW1")
    body.add("Unsqueeze", ["is_real_BW", "axis2"], "is_real_BW1")
    body.add("Where", ["is_live_BW1", "fused_mask_hidden", "zero_hidden"], "unreal_hidden_BWH")
    body.add("Where", ["is_real_BW1", "padded_hidden_BWH", "unreal_hidden_BWH"], "hidden_BWH")


def _norm_and_concatenate(body: FunctionBody, *, widens_embedding: bool) -> None:
    """layer_input and residual."""
    from onnx import AttributeProto, TensorProto

    embedded = "stored_BWH" if widens_embedding else "embedded_BWH"
    body.add("Gather", ["embedding", "token_ids_BW"], embedded, axis=0)
    if widens_embedding:
        body.add("CastLike", [embedded, "embedding_norm_weight"], "embedded_BWH")
    for source, weight, output in (
        ("embedded_BWH", "embedding_norm_weight", "normed_embedded_BWH"),
        ("hidden_BWH", "hidden_norm_weight", "normed_hidden_BWH"),
    ):
        body.add_with_attribute(
            "RMSNormalization", [source, weight], output, "epsilon", "epsilon", AttributeProto.FLOAT
        )
    body.add("Concat", ["normed_embedded_BWH", "normed_hidden_BWH"], "layer_input", axis=-1)
    body.add_with_attribute("Constant", [], "norm_flag", "value_int", "norm_before_residual", AttributeProto.INT)
    body.add("Cast", ["norm_flag"], "takes_normed", to=TensorProto.BOOL)
    body.add("Where", ["takes_normed", "normed_hidden_BWH", "hidden_BWH"], "residual")
