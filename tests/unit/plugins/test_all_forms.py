"""All forms of the plugins against numpy, on cases that the short tests leave out; run by scripts/prove."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from peagle_trt_plugins import torch_forms
from tests.support.capabilities import needs, needs_program
from tests.support.interpreter import Interpreter
from tests.support.plugin_bodies import run_case, run_staged_case
from tests.support.plugin_cases import DraftCase, SelectCase, assert_agrees, sweep
from tests.support.plugin_torch import call
from tests.support.tensorrt_bindings import Bindings
from tests.support.tensorrt_nodes import run_as_tensorrt

pytestmark = pytest.mark.slow

CASES = sweep()
# ONNX Runtime has no RMSNormalization in bfloat16 on a CPU.
WITH_BODY = [case for case in CASES if isinstance(case, SelectCase) or case.dtype != "bfloat16"]
# The interpreter's product of two bfloat16 matrices is garbage (Triton 3.9).
INTERPRETED = [
    case
    for case in CASES
    if isinstance(case, DraftCase) or case.dtype != "bfloat16" or case.table_dtype not in {None, "bfloat16"}
]


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Interpreter]:
    interpreter = Interpreter()
    yield interpreter
    interpreter.close()


@pytest.fixture(scope="module")
def bindings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bindings]:
    bindings = Bindings(tmp_path_factory.mktemp("bindings"), interprets=True)
    bindings.require("register", 1)
    yield bindings
    bindings.close()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_torch_equals_the_reference(case: DraftCase | SelectCase) -> None:
    assert_agrees(case, call(torch_forms, case))


@pytest.mark.parametrize("case", WITH_BODY, ids=str)
def test_the_onnx_body_equals_the_reference(case: DraftCase | SelectCase) -> None:
    assert_agrees(case, run_case(case))


@pytest.mark.parametrize("case", [case for case in CASES if isinstance(case, SelectCase)], ids=str)
def test_the_nested_bodies_equal_the_reference(case: SelectCase) -> None:
    assert_agrees(case, run_staged_case(case))


@needs("kernels")
@pytest.mark.parametrize("case", INTERPRETED, ids=str)
def test_the_kernels_equal_the_reference(interpreter: Interpreter, case: DraftCase | SelectCase) -> None:
    assert_agrees(case, interpreter.run(case))


@needs("kernels")
@needs("bindings")
@needs_program("gcc")
@pytest.mark.parametrize(("turn", "case"), [*enumerate(INTERPRETED)], ids=str)
def test_what_tensorrt_launches_equals_the_reference(
    bindings: Bindings, turn: int, case: DraftCase | SelectCase
) -> None:
    # Every plugin has two tactics at least to take turns with, or none to choose from.
    assert_agrees(case, run_as_tensorrt(bindings, case, turn // 2 % 2))
