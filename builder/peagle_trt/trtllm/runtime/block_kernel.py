"""Attention of verify steps on a GPU: one kernel whose shapes are fixed and whose work ends where the tokens end."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK_KEYS = 64
MIN_BLOCK = 16
"""Smallest side of a tile that a tensor core takes."""


def attend_block_on_gpu(
    queries_GWQD: Tensor, keys_SCND: Tensor, values_SCND: Tensor, slots_G: Tensor, positions_GW: Tensor
) -> Tensor:
    """See `attention.attend_block`; float16 and bfloat16 on tensor cores, float32 in TF32 where torch allows it."""
    from peagle_trt.trtllm.runtime.block_kernel_source import attend_block_kernel

    requests, width, query_heads, head_dim = queries_GWQD.shape
    capacity, heads = keys_SCND.shape[1:3]
    group = query_heads // heads
    queries, output = queries_GWQD.contiguous(), torch.empty_like(queries_GWQD, memory_format=torch.contiguous_format)
    attend_block_kernel[(requests, heads)](
        queries,
        keys_SCND,
        values_SCND,
        slots_G,
        positions_GW.contiguous(),
        output,
        head_dim**-0.5,
        heads,
        capacity,
        WIDTH=width,
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_ROWS=_power_of_two(width * group),
        BLOCK_KEYS=BLOCK_KEYS,
        BLOCK_DIM=_power_of_two(head_dim),
    )
    return output


def _power_of_two(size: int) -> int:
    return max(MIN_BLOCK, 1 << (size - 1).bit_length())
