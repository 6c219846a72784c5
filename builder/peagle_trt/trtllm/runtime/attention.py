"""Attention over the drafter's own cache: for pieces of prompts, and for the fixed rows of verify steps.

Letters: G requests, W rows of each, T rows of one piece, S slots, C places of a slot, Q query heads, N key-value heads,
D head dimension.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

QUERY_BLOCK = 512
"""Rows of a prompt that attend at once: a mask of all of them over a long context would take gigabytes."""


def attend_block(
    queries_GWQD: Tensor, keys_SCND: Tensor, values_SCND: Tensor, slots_G: Tensor, positions_GW: Tensor
) -> Tensor:
    """Rows of several requests, each over its own slot up to its own position: [G, W, Q, D].

    Nothing here depends on values, so a CUDA graph can hold it; the price is that every pass looks at the whole
    capacity. On a GPU the kernel of `block_kernel` stands in, whose work ends where the tokens end.
    """
    if queries_GWQD.is_cuda:
        from peagle_trt.trtllm.runtime.block_kernel import attend_block_on_gpu

        return attend_block_on_gpu(queries_GWQD, keys_SCND, values_SCND, slots_G, positions_GW)
    return attend_block_plainly(queries_GWQD, keys_SCND, values_SCND, slots_G, positions_GW)


def attend_block_plainly(
    queries_GWQD: Tensor, keys_SCND: Tensor, values_SCND: Tensor, slots_G: Tensor, positions_GW: Tensor
) -> Tensor:
    """`attend_block` in torch, over the whole capacity."""
    keys_GNCD, values_GNCD = (cache[slots_G].transpose(1, 2) for cache in (keys_SCND, values_SCND))
    places_C = torch.arange(keys_SCND.shape[1], device=positions_GW.device)
    is_visible_G1WC = (places_C <= positions_GW[:, :, None])[:, None]
    return _attend(queries_GWQD.transpose(1, 2), keys_GNCD, values_GNCD, is_visible_G1WC).transpose(1, 2)


def attend_piece(queries_TQD: Tensor, keys_CND: Tensor, values_CND: Tensor, start: int) -> Tensor:
    """Rows at positions `start`, `start` + 1, ... of one slot, each up to itself: [T, Q, D]. Not for CUDA graphs."""
    pieces = []
    for first in range(0, len(queries_TQD), QUERY_BLOCK):
        queries = queries_TQD[first : first + QUERY_BLOCK].transpose(0, 1)[None]
        extent = start + first + queries.shape[2]
        keys, values = (cache[:extent].transpose(0, 1)[None] for cache in (keys_CND, values_CND))
        places = torch.arange(extent, device=queries.device)
        is_visible = places <= (start + first + torch.arange(queries.shape[2], device=queries.device))[:, None]
        pieces.append(_attend(queries, keys, values, is_visible)[0].transpose(0, 1))
    return torch.cat(pieces)


def _attend(queries: Tensor, keys: Tensor, values: Tensor, is_visible: Tensor) -> Tensor:
    attended: Tensor = functional.scaled_dot_product_attention(
        queries, keys, values, attn_mask=is_visible, enable_gqa=queries.shape[1] != keys.shape[1]
    )
    return attended
