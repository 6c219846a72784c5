"""The torch operators, on a CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from peagle_trt_plugins.torch_op import register_torch_ops
from tests.support.plugin_cases import DRAFT_CASES, SELECT_CASES, DraftCase, SelectCase, assert_agrees
from tests.support.plugin_torch import call, function_for, tensors

CHECKED = [
    DraftCase(batch=2, rows=6, slots=5, hidden=8),
    DraftCase(batch=1, rows=1, slots=1, hidden=8, dtype="bfloat16", norm_before_residual=True),
    SelectCase(batch=2, slots=3, hidden=8, vocabulary=40),
    SelectCase(batch=2, slots=3, hidden=8, vocabulary=40, dtype="float16", candidates=4),
]


@pytest.fixture(scope="module")
def ops() -> Any:
    register_torch_ops()
    return torch.ops.peagle


@pytest.mark.parametrize("case", [*DRAFT_CASES, *SELECT_CASES], ids=str)
def test_the_operator_equals_the_reference(ops: Any, case: DraftCase | SelectCase) -> None:
    assert_agrees(case, call(ops, case))


@pytest.mark.parametrize("case", CHECKED, ids=str)
def test_schema_and_fake_are_true(ops: Any, case: DraftCase | SelectCase) -> None:
    utilities = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    given = tuple(torch.nan_to_num(t) if t.is_floating_point() else t for t in tensors(case.inputs()))
    checks = torch.library.opcheck(function_for(ops, case), given, case.attributes(), test_utils=utilities)
    assert set(checks.values()) == {"SUCCESS"}


def test_registering_twice_does_nothing(ops: Any) -> None:
    register_torch_ops()
