"""The forms of peagle::ParallelDraft against the contract and each other."""

from __future__ import annotations

import numpy as np
import pytest

from peagle_trt_plugins import contract
from peagle_trt_plugins.onnx_function import OPSET, parallel_draft_function
from peagle_trt_plugins.reference import expand_slots, parallel_draft

CASES = [(batch, rows, slots) for batch in (1, 3) for rows in (1, 2, 6, 17) for slots in (1, 2, 5, 16)]


def test_the_layout_is_vllms_published_test_vector() -> None:
    # vLLM `test_set_inputs_first_pass_parallel_drafting`: K=3, mask=-2, one request with a rejected row, one without.
    slots = expand_slots(
        np.array([[11, 12, 100, 0], [21, 22, 23, 200]], np.int32),
        np.array([2, 3], np.int32),
        np.array([5, 10], np.int32),
        np.full(3, -2, np.int32),
    )
    assert slots.token_ids_BW.tolist() == [[11, 12, 100, -2, -2, 0], [21, 22, 23, 200, -2, -2]]
    assert slots.positions_BW.tolist() == [[5, 6, 7, 8, 9, 0], [10, 11, 12, 13, 14, 15]]
    assert np.flatnonzero(slots.is_mask_BW).tolist() == [3, 4, 10, 11]
    assert np.flatnonzero(~slots.is_mask_BW & ~slots.is_real_BW).tolist() == [5]
    assert (slots.sample_rows_BK + np.array([[0], [6]])).ravel().tolist() == [2, 3, 4, 9, 10, 11]


@pytest.mark.parametrize(("batch", "rows", "slots"), CASES)
@pytest.mark.parametrize("norm_before_residual", [False, True])
def test_the_onnx_body_equals_the_reference(batch: int, rows: int, slots: int, norm_before_residual: bool) -> None:
    inputs = make_case(batch, rows, slots)
    expected = parallel_draft(*inputs.values(), epsilon=1e-5, norm_before_residual=norm_before_residual)
    found = run_body(inputs, norm_before_residual)
    for port, want, got in zip(contract.OUTPUTS, expected, found, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6, err_msg=port.name)


def test_a_poisoned_rejected_row_never_leaks() -> None:
    inputs = make_case(2, 6, 5)
    inputs["num_accepted"] = np.array([0, 3], np.int32)
    clean = run_body(inputs, False)
    inputs["fused_hidden"][0, 1:] = np.nan
    inputs["fused_hidden"][1, 4:] = np.inf
    inputs["next_token_ids"][0, 1:] = 2**31 - 1
    for want, got in zip(clean, run_body(inputs, False), strict=True):
        np.testing.assert_array_equal(got, want)


def test_more_accepted_than_rows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected 0\.\.1 for 2 rows"):
        expand_slots(np.zeros((1, 2), np.int32), np.array([2], np.int32), np.zeros(1, np.int32), np.zeros(3, np.int32))


def make_case(batch: int, rows: int, slots: int, hidden: int = 24, vocabulary: int = 40_000) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(batch * 1000 + rows * 100 + slots)

    def floats(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    return {
        "next_token_ids": rng.integers(0, vocabulary, (batch, rows)).astype(np.int32),
        "fused_hidden": floats(batch, rows, hidden),
        "num_accepted": rng.integers(0, rows, batch).astype(np.int32),
        "start_positions": rng.integers(0, 5000, batch).astype(np.int32),
        "mask_token_ids": np.full(slots, vocabulary - 1, np.int32),
        "embedding": floats(vocabulary, hidden),
        "fused_mask_hidden": floats(hidden),
        "embedding_norm_weight": floats(hidden),
        "hidden_norm_weight": floats(hidden),
    }


def run_body(inputs: dict[str, np.ndarray], norm_before_residual: bool) -> list[np.ndarray]:
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper

    element = {"float": TensorProto.FLOAT, "int32": TensorProto.INT32}

    def ports(side: tuple[contract.Port, ...]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(port.name, element[port.element], list(port.dims)) for port in side]

    node = helper.make_node(
        contract.NAME,
        [port.name for port in contract.INPUTS],
        [port.name for port in contract.OUTPUTS],
        domain=contract.DOMAIN,
        epsilon=1e-5,
        norm_before_residual=int(norm_before_residual),
    )
    graph = helper.make_graph([node], "case", ports(contract.INPUTS), ports(contract.OUTPUTS))
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(contract.DOMAIN, contract.VERSION)]
    model = helper.make_model(graph, opset_imports=opsets, functions=[parallel_draft_function()], ir_version=11)
    onnx.checker.check_model(model)
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)
