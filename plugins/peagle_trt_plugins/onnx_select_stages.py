"""ONNX functions of `SelectDraft` and `SelectDraftTopK` in two stages, each a node that TensorRT has a plugin for.

Full TensorRT takes the plugins of those names; ONNX Runtime and TensorRT-RTX run their bodies, which see the whole
vocabulary as one block. Nested functions are given M as a number and never by reference: the parser of TensorRT-RTX 1.7
reads an attribute that refers to an attribute that refers to another as 0, without a word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from peagle_trt_plugins import contract_select_draft as whole
from peagle_trt_plugins import contract_select_stages as stages
from peagle_trt_plugins.onnx_body import FunctionBody
from peagle_trt_plugins.onnx_select_draft import compute_logits
from peagle_trt_plugins.ports import TENSORRT_ATTRIBUTES

if TYPE_CHECKING:
    import onnx


def select_draft_functions(*, rounds_logits: bool = False) -> tuple[onnx.FunctionProto, ...]:
    """The functions to add to a model that holds a `SelectDraft` node; letters and arguments as below."""
    body = FunctionBody()
    _add_select_blocks(body, 1)
    _add_node(body, stages.BEST_NAME, ["block_values", "block_ids", "draft_to_target"], ["draft_token_ids"])
    outer = body.function(whole.NAME, whole.INPUTS, whole.OUTPUTS, ())
    return outer, _select_blocks(1, rounds_logits=rounds_logits), _merge_best()


def select_draft_top_k_functions(*, candidates: int, rounds_logits: bool = False) -> tuple[onnx.FunctionProto, ...]:
    """The functions to add to a model that holds a `SelectDraftTopK` node.

    Args:
        candidates: M; the node's own attribute must say the same.
        rounds_logits: Multiply in the type of hidden states and table, and round the logits to it. Otherwise both are
            turned into float32 first, which the contract asks for and TensorRT-RTX pays for with a float32 copy of the
            whole table in the engine (32,000 x 576: 75.1 MB instead of 38.3 MB). Both must be of one type then.
    """
    body = FunctionBody()
    _add_select_blocks(body, candidates)
    inputs = ["block_values", "block_ids", "draft_to_target", "temperature"]
    _add_node(body, stages.CANDIDATES_NAME, inputs, ["candidate_ids", "probabilities"], candidates=candidates)
    outer = body.function(whole.TOP_K_NAME, whole.TOP_K_INPUTS, whole.TOP_K_OUTPUTS, whole.TOP_K_ATTRIBUTES)
    return outer, _select_blocks(candidates, rounds_logits=rounds_logits), _merge_candidates(candidates)


def _add_select_blocks(body: FunctionBody, candidates: int) -> None:
    inputs = ["hidden", "sample_rows", "lm_head"]
    _add_node(body, stages.BLOCKS_NAME, inputs, ["block_values", "block_ids"], candidates=candidates)


def _add_node(body: FunctionBody, name: str, inputs: list[str], outputs: list[str], **attributes: int) -> None:
    from onnx import helper

    settings: dict[str, Any] = {**attributes, **TENSORRT_ATTRIBUTES}
    body.nodes.append(helper.make_node(name, inputs, outputs, domain=stages.DOMAIN, **settings))


def _select_blocks(candidates: int, *, rounds_logits: bool) -> onnx.FunctionProto:
    from onnx import TensorProto, helper

    body = FunctionBody()
    compute_logits(body, rounds_logits=rounds_logits)
    body.ints([candidates], "candidates_1")
    # TopK gives the lower index first among equals: the contract's rule.
    body.nodes.append(helper.make_node("TopK", ["logits_BKD", "candidates_1"], ["block_values", "ids_BKM"], axis=-1))
    body.add("Cast", ["ids_BKM"], "block_ids", to=TensorProto.INT32)
    return body.function(stages.BLOCKS_NAME, stages.BLOCKS_INPUTS, stages.BLOCKS_OUTPUTS, stages.BLOCKS_ATTRIBUTES)


def _merge_best() -> onnx.FunctionProto:
    from onnx import TensorProto

    body = FunctionBody()
    body.ints([2], "axis2")
    body.add("ArgMax", ["block_values"], "best_BK1", axis=-1, keepdims=1, select_last_index=0)
    body.add("GatherElements", ["block_ids", "best_BK1"], "draft_ids_BK1", axis=2)
    body.add("Squeeze", ["draft_ids_BK1", "axis2"], "draft_ids_BK")
    body.add("Gather", ["draft_to_target", "draft_ids_BK"], "target_ids_BK", axis=0)
    body.add("Cast", ["target_ids_BK"], "draft_token_ids", to=TensorProto.INT32)
    return body.function(stages.BEST_NAME, stages.BEST_INPUTS, stages.BEST_OUTPUTS, ())


def _merge_candidates(candidates: int) -> onnx.FunctionProto:
    from onnx import TensorProto, helper

    body = FunctionBody()
    body.ints([1], "axis1")
    body.ints([2], "axis2")
    body.ints([candidates], "candidates_1")
    body.nodes.append(helper.make_node("TopK", ["block_values", "candidates_1"], ["values_BKM", "best_BKM"], axis=-1))
    body.add("GatherElements", ["block_ids", "best_BKM"], "draft_ids_BKM", axis=2)
    body.add("Gather", ["draft_to_target", "draft_ids_BKM"], "target_ids_BKM", axis=0)
    body.add("Cast", ["target_ids_BKM"], "candidate_ids", to=TensorProto.INT32)
    body.add("ReduceMax", ["values_BKM", "axis2"], "largest_BK1", keepdims=1)
    body.add("Sub", ["values_BKM", "largest_BK1"], "below_BKM")
    body.add("Unsqueeze", ["temperature", "axis1"], "temperature_B1")
    body.add("Unsqueeze", ["temperature_B1", "axis2"], "temperature_B11")
    body.add("Div", ["below_BKM", "temperature_B11"], "scaled_BKM")
    body.add("Softmax", ["scaled_BKM"], "probabilities", axis=-1)
    return body.function(
        stages.CANDIDATES_NAME, stages.CANDIDATES_INPUTS, stages.CANDIDATES_OUTPUTS, stages.CANDIDATES_ATTRIBUTES
    )
