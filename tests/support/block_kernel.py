"""Attention's kernel in Triton's interpreter, in a process of its own, against torch; prints the largest difference."""

from __future__ import annotations

import sys

import torch


def compare(width: int, query_heads: int, heads: int, head_dim: int, seed: int) -> float:
    from peagle_trt.trtllm.runtime.attention import attend_block_plainly
    from peagle_trt.trtllm.runtime.block_kernel import attend_block_on_gpu

    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(3, width, query_heads, head_dim, generator=generator)
    keys, values = torch.randn(2, 4, 150, heads, head_dim, generator=generator)
    slots, first = torch.tensor([2, 0, 3]), torch.tensor([0, 61, 150 - width])
    positions = first[:, None] + torch.arange(width)
    # What lies past a row must not be read: stale rows of other requests stand there.
    keys[2, width:] = values[2, width:] = torch.nan
    found = attend_block_on_gpu(queries, keys, values, slots, positions)
    keys[2, width:] = values[2, width:] = 0.0
    return float((found - attend_block_plainly(queries, keys, values, slots, positions)).abs().max())


if __name__ == "__main__":
    cases = ((2, 4, 2, 16), (10, 4, 1, 24), (6, 8, 8, 64), (32, 4, 2, 32))
    sys.stdout.write(f"{max(compare(*case, seed) for seed, case in enumerate(cases))}\n")
