"""ONNX function body of `peagle::ParallelDraft`: what a runtime without the plugin executes in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from peagle_trt_plugins import contract

if TYPE_CHECKING:
    import onnx

OPSET = 23


def parallel_draft_function(*, widens_embedding: bool = False) -> onnx.FunctionProto:
    """The function to add to a model that holds a `ParallelDraft` node. Uses standard operators of opset 23 only.

    Args:
        widens_embedding: The embedding table is of another floating type than the other ports; the rows that are
            read are turned into theirs.
    """
    from onnx import helper

    body = _Body()
    _lay_out_rows(body)
    _fill_tokens(body)
    _fill_hidden(body)
    _norm_and_concatenate(body, widens_embedding=widens_embedding)
    return helper.make_function(
        domain=contract.DOMAIN,
        fname=contract.NAME,
        inputs=[port.name for port in contract.INPUTS],
        outputs=[port.name for port in contract.OUTPUTS],
        nodes=body.nodes,
        opset_imports=[helper.make_opsetid("", OPSET)],
        attributes=[attribute.name for attribute in contract.ATTRIBUTES],
    )


class _Body:
    """Nodes of the function, in order."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []

    def add(self, op_type: str, inputs: list[str], output: str, **attributes: Any) -> str:
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
        return self.add("Constant", [], output, value_ints=values)

    def int32(self, value: int, output: str) -> str:
        from onnx import TensorProto, helper

        tensor = helper.make_tensor(output, TensorProto.INT32, [], [value])
        return self.add("Constant", [], output, value=tensor)


def _lay_out_rows(body: _Body) -> None:
    """batch, slots and width; is_real_BW, is_live_BW, positions, sample_rows."""
    from onnx import TensorProto

    body.int32(0, "zero")
    body.int32(1, "one")
    body.ints([0], "axis0")
    body.ints([1], "axis1")
    body.ints([2], "axis2")
    body.add("Shape", ["next_token_ids"], "batch_1", start=0, end=1)
    body.add("Shape", ["next_token_ids"], "rows_1", start=1, end=2)
    body.add("Shape", ["mask_token_ids"], "slots_1", start=0, end=1)
    body.add("Sub", ["slots_1", "axis1"], "masks_1")
    body.add("Add", ["rows_1", "masks_1"], "width_1")
    body.add("Cast", ["width_1"], "width_i1", to=TensorProto.INT32)
    body.add("Cast", ["slots_1"], "slots_i1", to=TensorProto.INT32)
    body.add("Squeeze", ["width_i1"], "width")
    body.add("Squeeze", ["slots_i1"], "slots")
    body.add("Range", ["zero", "width", "one"], "row_W")
    body.add("Range", ["zero", "slots", "one"], "slot_K")
    body.add("Unsqueeze", ["num_accepted", "axis1"], "accepted_B1")
    body.add("Unsqueeze", ["start_positions", "axis1"], "start_B1")
    body.add("Add", ["accepted_B1", "slots"], "end_B1")
    body.add("LessOrEqual", ["row_W", "accepted_B1"], "is_real_BW")
    body.add("Less", ["row_W", "end_B1"], "is_live_BW")
    body.add("Add", ["start_B1", "row_W"], "moved_BW")
    body.add("Where", ["is_live_BW", "moved_BW", "zero"], "positions")
    body.add("Add", ["accepted_B1", "slot_K"], "sample_rows")


def _fill_tokens(body: _Body) -> None:
    """token_ids_BW."""
    body.add("Concat", ["batch_1", "masks_1"], "tail_shape", axis=0)
    body.add("Expand", ["zero", "tail_shape"], "tail_BM")
    body.add("Concat", ["next_token_ids", "tail_BM"], "padded_ids_BW", axis=1)
    body.add("Gather", ["mask_token_ids", "axis0"], "mask_id_1", axis=0)
    body.add("Where", ["is_live_BW", "mask_id_1", "zero"], "unreal_ids_BW")
    body.add("Where", ["is_real_BW", "padded_ids_BW", "unreal_ids_BW"], "token_ids_BW")


def _fill_hidden(body: _Body) -> None:
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


def _norm_and_concatenate(body: _Body, *, widens_embedding: bool) -> None:
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
