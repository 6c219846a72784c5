"""The contract, the reference and the ONNX body of peagle::ParallelDraft."""

from __future__ import annotations

import numpy as np
import pytest

from peagle_trt_plugins.reference import expand_slots
from tests.support.plugin_bodies import run_case
from tests.support.plugin_cases import DRAFT_CASES, DraftCase, assert_agrees

# ONNX Runtime has no RMSNormalization in bfloat16 on a CPU.
ONNX_CASES = [case for case in DRAFT_CASES if case.dtype != "bfloat16"]


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


@pytest.mark.parametrize("case", ONNX_CASES, ids=str)
def test_the_onnx_body_equals_the_reference(case: DraftCase) -> None:
    assert_agrees(case, run_case(case))


@pytest.mark.parametrize("case", DRAFT_CASES, ids=str)
def test_a_poisoned_rejected_row_never_reaches_the_reference(case: DraftCase) -> None:
    assert all(np.isfinite(output).all() for output in case.expected())


def test_more_accepted_than_rows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected 0\.\.1 for 2 rows"):
        expand_slots(np.zeros((1, 2), np.int32), np.array([2], np.int32), np.zeros(1, np.int32), np.zeros(3, np.int32))
