"""The Triton kernels in Triton's interpreter.

It takes the first of equals whatever a kernel asks for; scripts/gpu_check
has ties for a card to settle.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.capabilities import needs
from tests.support.interpreter import Interpreter
from tests.support.plugin_cases import DRAFT_CASES, SELECT_CASES, DraftCase, SelectCase, assert_agrees

pytestmark = needs("kernels")


def is_garbled(case: SelectCase) -> bool:
    """The interpreter's product of two bfloat16 matrices is garbage (Triton 3.9); other types cover the kernel."""
    return case.dtype == "bfloat16"


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Interpreter]:
    interpreter = Interpreter()
    yield interpreter
    interpreter.close()


@pytest.mark.parametrize("case", DRAFT_CASES, ids=str)
def test_parallel_draft_equals_the_reference(interpreter: Interpreter, case: DraftCase) -> None:
    assert_agrees(case, interpreter.run(case))


@pytest.mark.parametrize("case", [case for case in SELECT_CASES if not is_garbled(case)], ids=str)
def test_select_draft_equals_the_reference(interpreter: Interpreter, case: SelectCase) -> None:
    assert_agrees(case, interpreter.run(case))
