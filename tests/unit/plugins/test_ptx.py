"""Reading PTX, on a text as Triton 3.9 writes it."""

from __future__ import annotations

import pytest

from peagle_trt_plugins.ptx import drop_hidden_parameters, kernel_parameters, ptx_version

PTX = """//
.version 8.7
.target sm_100a
.visible .entry add_one(
	.param .u64 .ptr .global .align 1 add_one_param_0,
	.param .u32 add_one_param_1,
	.param .u64 .ptr .global .align 1 add_one_param_2,
	.param .u64 .ptr .global .align 1 add_one_param_3,
	.param .u64 .ptr .global .align 1 add_one_param_4
)
.reqntid 128
{
	ld.param.b64 	%rd1, [add_one_param_0];
	ld.param.b64 	%rd2, [add_one_param_2];
	ret;
}
"""


def test_the_version_is_read() -> None:
    assert ptx_version(PTX) == "8.7"


def test_parameters_are_read_in_order() -> None:
    assert [kind for kind, _ in kernel_parameters(PTX)] == ["u64", "u32", "u64", "u64", "u64"]


def test_the_hidden_pointers_go_and_nothing_else_does() -> None:
    shorter = drop_hidden_parameters(PTX)
    assert kernel_parameters(shorter) == kernel_parameters(PTX)[:3]
    last = "add_one_param_2"
    assert shorter == PTX[: PTX.index(last) + len(last)] + PTX[PTX.index("\n)") :]


def test_a_kernel_that_reads_a_hidden_pointer_is_refused() -> None:
    with pytest.raises(ValueError, match="scratch memory"):
        drop_hidden_parameters(PTX.replace("[add_one_param_2]", "[add_one_param_4]"))


def test_a_kernel_without_hidden_pointers_is_refused() -> None:
    with pytest.raises(ValueError, match="two hidden pointers"):
        drop_hidden_parameters(PTX.replace(".u64 .ptr .global .align 1 add_one_param_4", ".u32 add_one_param_4"))


@pytest.mark.parametrize("text", ["", PTX + PTX])
def test_a_text_of_no_kernel_or_two_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"has [02] kernels; expected one"):
        kernel_parameters(text)


def test_what_is_no_ptx_is_refused() -> None:
    with pytest.raises(ValueError, match="no PTX"):
        ptx_version("#include <cuda.h>")
