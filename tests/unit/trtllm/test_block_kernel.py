"""The kernel that attends in verify steps on a GPU, interpreted and compiled: no GPU here ever ran it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.capabilities import needs

pytestmark = needs("kernels")


def test_the_kernel_equals_torch_and_reads_nothing_past_a_row() -> None:
    command = [sys.executable, "-m", "tests.support.block_kernel"]
    finished = subprocess.run(
        command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=True
    )
    assert float(finished.stdout) < 5e-6


# Triton 3.9 announces that it will no longer fuse products and sums by itself.
@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize("architecture", [90, 100, 120])
@pytest.mark.parametrize(("draft_tokens", "group", "head_dim"), [(7, 8, 64), (5, 4, 128)])
def test_the_kernel_compiles(architecture: int, draft_tokens: int, group: int, head_dim: int) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from peagle_trt.trtllm.runtime.block_kernel import BLOCK_KEYS, _power_of_two
    from peagle_trt.trtllm.runtime.block_kernel_source import attend_block_kernel

    width = 2 * draft_tokens
    constants = {
        "WIDTH": width,
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "BLOCK_ROWS": _power_of_two(width * group),
        "BLOCK_KEYS": BLOCK_KEYS,
        "BLOCK_DIM": _power_of_two(head_dim),
    }
    signature = dict.fromkeys(("queries", "keys", "values", "output"), "*bf16")
    signature |= {"slots": "*i64", "positions": "*i64", "scale": "fp32"}
    signature |= {"num_key_value_heads": "i32", "capacity": "i32"}
    ordered = {name: signature.get(name, "constexpr") for name in attend_block_kernel.arg_names}
    source = ASTSource(fn=attend_block_kernel, signature=ordered, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32))
    assert compiled.asm["cubin"]
    assert compiled.metadata.shared < 160 << 10
