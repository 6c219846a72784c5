"""Launches the Triton kernels on torch tensors; needs torch, Triton and a CUDA device or Triton's interpreter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from peagle_trt_plugins.ports import MAX_HIDDEN_SIZE

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectBlocks:
    """How `select_blocks_kernel` cuts its work.

    Attributes:
        rows: Samples of a program; 16 is the least that a matrix instruction takes.
        ids: Rows of `lm_head` of a program.
        hidden: Columns read at a time.
        num_warps: Of a program.
        num_stages: Reads in flight.
    """

    rows: int
    ids: int
    hidden: int
    num_warps: int
    num_stages: int


def row_warps(hidden_size: int) -> int:
    """Warps for a program that holds whole rows: at most 16 numbers of a row to a thread, where 8 warps allow it."""
    return 1 if hidden_size <= 512 else 4 if hidden_size <= 2048 else 8


def merge_warps(block: int) -> int:
    """Warps for a program that holds a block of candidates: at most 128 numbers to a thread."""
    return 4 if block <= 4096 else 8 if block <= 16_384 else 16


def select_blocks(num_samples: int, element_bytes: int) -> SelectBlocks:
    """The cut for so many samples of a type; few samples are bound by memory, many by the matrix units."""
    if element_bytes == 4:
        return SelectBlocks(rows=16, ids=64, hidden=32, num_warps=4, num_stages=2)
    rows = 16 if num_samples <= 16 else 32 if num_samples <= 32 else 64
    return SelectBlocks(rows=rows, ids=128, hidden=64, num_warps=4, num_stages=3)


def next_power_of_two(number: int) -> int:
    """The least power of two that is not below `number`, which is at least 1."""
    return 1 << (number - 1).bit_length()


def parallel_draft(
    next_token_ids: Tensor,
    fused_hidden: Tensor,
    num_accepted: Tensor,
    start_positions: Tensor,
    mask_token_ids: Tensor,
    embedding: Tensor,
    fused_mask_hidden: Tensor,
    embedding_norm_weight: Tensor,
    hidden_norm_weight: Tensor,
    *,
    epsilon: float,
    norm_before_residual: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ports of contract.py, in its order, in one launch.

    Raises:
        ValueError: A tensor is not contiguous, or H is above the contract's limit.
    """
    from peagle_trt_plugins.torch_forms import fake_parallel_draft
    from peagle_trt_plugins.triton_kernels import parallel_draft_kernel

    inputs = (
        next_token_ids,
        fused_hidden,
        num_accepted,
        start_positions,
        mask_token_ids,
        embedding,
        fused_mask_hidden,
        embedding_norm_weight,
        hidden_norm_weight,
    )
    (batch, rows), slots, hidden = next_token_ids.shape, mask_token_ids.shape[0], fused_hidden.shape[2]
    _check(hidden, inputs)
    outputs = fake_parallel_draft(*inputs, epsilon=epsilon, norm_before_residual=norm_before_residual)
    parallel_draft_kernel[(batch * (rows + slots - 1),)](
        *inputs,
        rows,
        slots,
        *outputs,
        HIDDEN=hidden,
        EPSILON=epsilon,
        NORM_BEFORE_RESIDUAL=norm_before_residual,
        BLOCK=next_power_of_two(hidden),
        num_warps=row_warps(hidden),
        enable_fp_fusion=True,
    )
    return outputs


def select_draft(hidden: Tensor, sample_rows: Tensor, lm_head: Tensor, draft_to_target: Tensor) -> Tensor:
    """Ports of contract_select_draft.py, in its order, in two launches.

    Raises:
        ValueError: A tensor is not contiguous, or H is above the contract's limit.
    """
    from peagle_trt_plugins.triton_kernels import merge_best_kernel

    _check(hidden.shape[2], (hidden, sample_rows, lm_head, draft_to_target))
    values, ids = _best_of_blocks(hidden, sample_rows, lm_head, candidates=1)
    best = sample_rows.new_empty(sample_rows.shape)
    entries = values.shape[1]
    block = next_power_of_two(entries)
    merge_best_kernel[(sample_rows.numel(),)](
        values, ids, draft_to_target, entries, best, BLOCK=block, num_warps=merge_warps(block), enable_fp_fusion=True
    )
    return best


def select_draft_top_k(
    hidden: Tensor,
    sample_rows: Tensor,
    lm_head: Tensor,
    draft_to_target: Tensor,
    temperature: Tensor,
    *,
    candidates: int,
) -> tuple[Tensor, Tensor]:
    """Ports of contract_select_draft.py, in its order, in two launches.

    Raises:
        ValueError: A tensor is not contiguous, or H is above the contract's limit.
    """
    from peagle_trt_plugins.torch_forms import fake_select_draft_top_k
    from peagle_trt_plugins.triton_kernels import merge_candidates_kernel

    inputs = (hidden, sample_rows, lm_head, draft_to_target, temperature)
    _check(hidden.shape[2], inputs)
    values, ids = _best_of_blocks(hidden, sample_rows, lm_head, candidates=candidates)
    outputs = fake_select_draft_top_k(*inputs, candidates=candidates)
    entries = values.shape[1]
    block = next_power_of_two(entries)
    merge_candidates_kernel[(sample_rows.numel(),)](
        values,
        ids,
        draft_to_target,
        temperature,
        entries,
        sample_rows.shape[1],
        *outputs,
        CANDIDATES=candidates,
        BLOCK_CANDIDATES=next_power_of_two(candidates),
        BLOCK=block,
        num_warps=merge_warps(block),
        enable_fp_fusion=True,
    )
    return outputs


def _best_of_blocks(hidden: Tensor, sample_rows: Tensor, lm_head: Tensor, *, candidates: int) -> tuple[Tensor, Tensor]:
    """Values and draft ids of the candidates of every block, each [B * K, blocks * candidates]."""
    import torch

    from peagle_trt_plugins.triton_kernels import select_blocks_kernel

    num_samples, num_ids = sample_rows.numel(), lm_head.shape[0]
    widens = hidden.dtype != lm_head.dtype
    cut = select_blocks(num_samples, 4 if widens else lm_head.element_size())
    num_blocks = -(-num_ids // cut.ids)
    values = hidden.new_empty(num_samples, num_blocks * candidates, dtype=torch.float32)
    ids = sample_rows.new_empty(num_samples, num_blocks * candidates)
    select_blocks_kernel[(-(-num_samples // cut.rows), num_blocks)](
        hidden,
        sample_rows,
        lm_head,
        num_samples,
        sample_rows.shape[1],
        hidden.shape[1],
        num_ids,
        values,
        ids,
        HIDDEN=hidden.shape[2],
        CANDIDATES=candidates,
        WIDENS=widens,
        BLOCK_ROWS=cut.rows,
        BLOCK_IDS=cut.ids,
        BLOCK_HIDDEN=cut.hidden,
        num_warps=cut.num_warps,
        num_stages=cut.num_stages,
        enable_fp_fusion=True,
    )
    return values, ids


def _check(hidden_size: int, tensors: tuple[Tensor, ...]) -> None:
    if hidden_size > MAX_HIDDEN_SIZE:
        raise ValueError(f"hidden size is {hidden_size}; expected at most {MAX_HIDDEN_SIZE}")
    # A copy in silence would hide that a whole table is moved at every step.
    if not all(tensor.is_contiguous() for tensor in tensors):
        raise ValueError("a tensor is not contiguous; the kernels address rows by multiplication")
