"""Launches the Triton kernels on torch tensors; needs torch, Triton and a CUDA device or Triton's interpreter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from peagle_trt_plugins.kernel_launches import (
    Launch,
    launch_merge_best,
    launch_merge_candidates,
    launch_parallel_draft,
    launch_select_blocks,
    num_entries,
)
from peagle_trt_plugins.kernel_variants import (
    KernelVariant,
    merge_best_variant,
    merge_candidates_variant,
    parallel_draft_variant,
    product_element,
    select_blocks_variant,
    select_cut,
)
from peagle_trt_plugins.ports import MAX_HIDDEN_SIZE

if TYPE_CHECKING:
    from torch import Tensor

    from peagle_trt_plugins.kernel_variants import Cut


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
    variant = parallel_draft_variant(
        hidden,
        element_of(fused_hidden),
        element_of(embedding),
        epsilon=epsilon,
        norm_before_residual=norm_before_residual,
    )
    outputs = fake_parallel_draft(*inputs, epsilon=epsilon, norm_before_residual=norm_before_residual)
    run_kernel(variant, launch_parallel_draft(batch, rows, slots), inputs, outputs)
    return outputs


def select_draft(hidden: Tensor, sample_rows: Tensor, lm_head: Tensor, draft_to_target: Tensor) -> Tensor:
    """Ports of contract_select_draft.py, in its order, in two launches.

    Raises:
        ValueError: A tensor is not contiguous, or H is above the contract's limit.
    """
    _check(hidden.shape[2], (hidden, sample_rows, lm_head, draft_to_target))
    values, ids = select_blocks(hidden, sample_rows, lm_head, candidates=1)
    best = sample_rows.new_empty(sample_rows.shape)
    (batch, slots), entries = sample_rows.shape, values.shape[2]
    launch = launch_merge_best(batch, slots, entries)
    run_kernel(merge_best_variant(entries), launch, (values, ids, draft_to_target), (best,))
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

    inputs = (hidden, sample_rows, lm_head, draft_to_target, temperature)
    _check(hidden.shape[2], inputs)
    values, ids = select_blocks(hidden, sample_rows, lm_head, candidates=candidates)
    outputs = fake_select_draft_top_k(*inputs, candidates=candidates)
    (batch, slots), entries = sample_rows.shape, values.shape[2]
    launch = launch_merge_candidates(batch, slots, entries)
    variant = merge_candidates_variant(entries, candidates)
    run_kernel(variant, launch, (values, ids, draft_to_target, temperature), outputs)
    return outputs


def select_blocks(
    hidden: Tensor, sample_rows: Tensor, lm_head: Tensor, *, candidates: int, cut: Cut | None = None
) -> tuple[Tensor, Tensor]:
    """Values and draft ids of the candidates of every block, each [B, K, E]; ports of contract_select_stages.py."""
    import torch

    (batch, slots), (num_ids, hidden_size) = sample_rows.shape, lm_head.shape
    element, table = element_of(hidden), element_of(lm_head)
    cut = cut or select_cut(batch * slots, product_element(element, table))
    shape = (batch, slots, num_entries(num_ids, candidates, cut))
    outputs = (hidden.new_empty(shape, dtype=torch.float32), sample_rows.new_empty(shape))
    variant = select_blocks_variant(hidden_size, element, table, candidates=candidates, cut=cut)
    launch = launch_select_blocks(batch, slots, hidden.shape[1], num_ids, cut)
    run_kernel(variant, launch, (hidden, sample_rows, lm_head), outputs)
    return outputs


def run_kernel(
    variant: KernelVariant, launch: Launch[int], inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]
) -> None:
    """Launch a variant: what it reads, its integers, what it writes."""
    from peagle_trt_plugins import triton_kernels

    getattr(triton_kernels, variant.kernel)[launch.grid](
        *inputs,
        *launch.scalars,
        *outputs,
        **variant.constants,
        num_warps=variant.num_warps,
        num_stages=variant.num_stages,
        enable_fp_fusion=True,
    )


def element_of(tensor: Tensor) -> str:
    """The type of a floating tensor, as Triton names it.

    Raises:
        ValueError: The kernels do not take it.
    """
    elements = {"torch.float32": "fp32", "torch.float16": "fp16", "torch.bfloat16": "bf16"}
    if str(tensor.dtype) not in elements:
        raise ValueError(f"a tensor is of {tensor.dtype}; expected float32, float16 or bfloat16")
    return elements[str(tensor.dtype)]


def _check(hidden_size: int, tensors: tuple[Tensor, ...]) -> None:
    if hidden_size > MAX_HIDDEN_SIZE:
        raise ValueError(f"hidden size is {hidden_size}; expected at most {MAX_HIDDEN_SIZE}")
    # A copy in silence would hide that a whole table is moved at every step.
    if not all(tensor.is_contiguous() for tensor in tensors):
        raise ValueError("a tensor is not contiguous; the kernels address rows by multiplication")
