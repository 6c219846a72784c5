"""The two stages of peagle::SelectDraft and peagle::SelectDraftTopK."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from peagle_trt_plugins import contract_select_draft, contract_select_stages
from peagle_trt_plugins.onnx_select_stages import select_draft_functions, select_draft_top_k_functions
from peagle_trt_plugins.reference_select_stages import merge_best, merge_candidates, select_blocks
from tests.support.plugin_bodies import run_staged_case
from tests.support.plugin_cases import SELECT_CASES, SelectCase, assert_agrees

# What a table of one type and hidden states of another are multiplied in is float32 alone.
ONE_TYPE = [case for case in SELECT_CASES if case.table_dtype is None and case.dtype != "bfloat16" and not case.damage]


@pytest.mark.parametrize("case", SELECT_CASES, ids=str)
def test_the_nested_bodies_equal_the_reference(case: SelectCase) -> None:
    assert_agrees(case, run_staged_case(case))


@pytest.mark.parametrize("case", ONE_TYPE, ids=str)
def test_rounded_logits_of_small_whole_numbers_are_the_same(case: SelectCase) -> None:
    assert_agrees(case, run_staged_case(case, rounds_logits=True))


@pytest.mark.parametrize("ids_per_block", [1, 7, 64, 40_000])
@pytest.mark.parametrize("case", SELECT_CASES[::3], ids=str)
def test_merging_does_not_depend_on_the_blocks(case: SelectCase, ids_per_block: int) -> None:
    given = case.inputs()
    values, ids = select_blocks(
        given["hidden"],
        given["sample_rows"],
        given["lm_head"],
        candidates=case.candidates or 1,
        ids_per_block=ids_per_block,
    )
    if case.candidates:
        temperature = given["temperature"]
        found = merge_candidates(values, ids, given["draft_to_target"], temperature, candidates=case.candidates)
        assert_agrees(case, list(found))
    else:
        assert_agrees(case, [merge_best(values, ids, given["draft_to_target"])])


def test_every_stage_has_a_contract_and_a_function_of_its_ports() -> None:
    functions = {function.name: function for function in select_draft_top_k_functions(candidates=3)}
    functions |= {function.name: function for function in select_draft_functions()}
    stages, whole = contract_select_stages, contract_select_draft
    ports = {
        whole.NAME: (whole.INPUTS, whole.OUTPUTS),
        whole.TOP_K_NAME: (whole.TOP_K_INPUTS, whole.TOP_K_OUTPUTS),
        stages.BLOCKS_NAME: (stages.BLOCKS_INPUTS, stages.BLOCKS_OUTPUTS),
        stages.BEST_NAME: (stages.BEST_INPUTS, stages.BEST_OUTPUTS),
        stages.CANDIDATES_NAME: (stages.CANDIDATES_INPUTS, stages.CANDIDATES_OUTPUTS),
    }
    found = {name: (list(function.input), list(function.output)) for name, function in functions.items()}
    assert found == {name: tuple([port.name for port in side] for side in sides) for name, sides in ports.items()}


def test_no_attribute_of_a_nested_node_is_a_reference() -> None:
    # TensorRT-RTX's parser reads a reference to a reference as 0.
    functions = (*select_draft_top_k_functions(candidates=3), *select_draft_functions())
    attributes = [attribute for function in functions for node in function.node for attribute in node.attribute]
    assert not [attribute for attribute in attributes if attribute.ref_attr_name]


def test_a_nested_node_can_be_found_as_a_plugin() -> None:
    node = select_draft_top_k_functions(candidates=3)[0].node[0]
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    assert attributes == {
        "candidates": 3,
        "plugin_namespace": b"peagle",
        "plugin_version": b"1",
        "aot": 1,
        "contract_version": 1,
    }
    assert node.domain == "peagle"


def test_a_block_with_too_few_ids_is_filled_with_what_never_wins() -> None:
    one = np.ones((1, 1, 1), np.float32)
    values, ids = select_blocks(
        one, np.zeros((1, 1), np.int32), np.ones((3, 1), np.float32), candidates=2, ids_per_block=2
    )
    assert values.tolist() == [[[1, 1, 1, -np.inf]]]
    assert ids.tolist() == [[[0, 1, 2, -1]]]
