"""Triton kernels of `peagle::ParallelDraft` and `peagle::SelectDraft`. Letters as in the contracts.

Parameters stand in the order in which TensorRT hands them over: inputs, 32-bit integers, outputs; what a build knows is
a `constexpr`. Importing this module needs Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Of float32: a NaN among the logits counts as the lowest.
HIGHEST = tl.constexpr(3.4028234663852886e38)
# Below every clamped logit, so that what lies outside the vocabulary or was taken before never wins.
OUTSIDE = tl.constexpr(float("-inf"))


@triton.jit
def parallel_draft_kernel(
    next_token_ids,
    fused_hidden,
    num_accepted,
    start_positions,
    mask_token_ids,
    embedding,
    fused_mask_hidden,
    embedding_norm_weight,
    hidden_norm_weight,
    num_rows,
    num_slots,
    layer_input,
    residual,
    positions,
    sample_rows,
    HIDDEN: tl.constexpr,
    EPSILON: tl.constexpr,
    NORM_BEFORE_RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program writes one row: B * W programs. BLOCK is the power of two that holds H."""
    program = tl.program_id(0).to(tl.int64)
    width = num_rows + num_slots - 1
    sequence = program // width
    row = (program % width).to(tl.int32)
    accepted = tl.load(num_accepted + sequence)
    is_real = row <= accepted
    is_live = row < accepted + num_slots

    # A rejected row's token and hidden state are not even read.
    source = sequence * num_rows + row
    token = tl.load(next_token_ids + source, mask=is_real, other=0)
    token = tl.where(is_real, token, tl.where(is_live, tl.load(mask_token_ids), 0)).to(tl.int64)
    column = tl.arange(0, BLOCK)
    is_inside = column < HIDDEN
    is_given = column < tl.where(is_real, HIDDEN, 0)
    is_masked = column < tl.where(is_live, HIDDEN, 0)
    given = tl.load(fused_hidden + source * HIDDEN + column, mask=is_given, other=0.0).to(tl.float32)
    masked = tl.load(fused_mask_hidden + column, mask=is_masked, other=0.0).to(tl.float32)
    hidden = tl.where(is_real, given, masked)
    embedded = tl.load(embedding + token * HIDDEN + column, mask=is_inside, other=0.0).to(tl.float32)

    embedded_weight = tl.load(embedding_norm_weight + column, mask=is_inside, other=0.0).to(tl.float32)
    hidden_weight = tl.load(hidden_norm_weight + column, mask=is_inside, other=0.0).to(tl.float32)
    embedded_scale = 1.0 / tl.sqrt(tl.sum(embedded * embedded, axis=0) / HIDDEN + EPSILON)
    hidden_scale = 1.0 / tl.sqrt(tl.sum(hidden * hidden, axis=0) / HIDDEN + EPSILON)
    normed = hidden * hidden_scale * hidden_weight
    left = layer_input + program * (2 * HIDDEN) + column
    tl.store(left, (embedded * embedded_scale * embedded_weight).to(layer_input.dtype.element_ty), mask=is_inside)
    tl.store(left + HIDDEN, normed.to(layer_input.dtype.element_ty), mask=is_inside)
    kept = normed if NORM_BEFORE_RESIDUAL else hidden
    tl.store(residual + program * HIDDEN + column, kept.to(residual.dtype.element_ty), mask=is_inside)
    tl.store(positions + program, tl.where(is_live, tl.load(start_positions + sequence) + row, 0))
    # W is at least K, so that the first K rows can write one each.
    tl.store(sample_rows + sequence * num_slots + row, accepted + row, mask=row < num_slots)


@triton.jit
def select_blocks_kernel(
    hidden,
    sample_rows,
    lm_head,
    num_samples,
    num_slots,
    width,
    num_ids,
    block_values,
    block_ids,
    HIDDEN: tl.constexpr,
    CANDIDATES: tl.constexpr,
    WIDENS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_IDS: tl.constexpr,
    BLOCK_HIDDEN: tl.constexpr,
):
    """The best CANDIDATES ids of one block of the vocabulary for a block of samples; logits stay in registers.

    The vocabulary is what is spread over the GPU, since reading `lm_head` is nearly all of the work; hence a second
    kernel that looks over the blocks. Blocks of samples lie next to each other in the grid: what one of them reads of
    `lm_head` the next finds in the cache. WIDENS: hidden states and table are of different types; both become float32.
    """
    sample = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    block = tl.program_id(1)
    local = tl.arange(0, BLOCK_IDS)
    ids = block * BLOCK_IDS + local
    is_sample = sample < num_samples
    is_id = ids < num_ids
    row = tl.load(sample_rows + sample, mask=is_sample, other=0)
    sampled = ((sample // num_slots) * width + row).to(tl.int64) * HIDDEN
    weights = ids.to(tl.int64) * HIDDEN
    logits = tl.zeros((BLOCK_ROWS, BLOCK_IDS), dtype=tl.float32)
    for start in range(0, HIDDEN, BLOCK_HIDDEN):
        column = start + tl.arange(0, BLOCK_HIDDEN)
        is_inside = column < HIDDEN
        left = tl.load(
            hidden + sampled[:, None] + column[None, :], mask=is_sample[:, None] & is_inside[None, :], other=0.0
        )
        right = tl.load(
            lm_head + weights[:, None] + column[None, :], mask=is_id[:, None] & is_inside[None, :], other=0.0
        )
        if WIDENS:
            left = left.to(tl.float32)
            right = right.to(tl.float32)
        # Without "ieee" float32 would be cut to the 10 bits of tf32.
        logits = tl.dot(left, tl.trans(right), logits, input_precision="ieee")
    logits = tl.where(logits != logits, -HIGHEST, logits)
    logits = tl.minimum(tl.maximum(logits, -HIGHEST), HIGHEST)
    logits = tl.where(is_id[None, :], logits, OUTSIDE)
    place = (sample.to(tl.int64) * tl.num_programs(1) + block) * CANDIDATES
    for rank in tl.static_range(CANDIDATES):
        value, index = tl.max(logits, axis=1, return_indices=True, return_indices_tie_break_left=True)
        tl.store(block_values + place + rank, value, mask=is_sample)
        tl.store(block_ids + place + rank, block * BLOCK_IDS + index, mask=is_sample)
        logits = tl.where(local[None, :] == index[:, None], OUTSIDE, logits)


@triton.jit
def merge_best_kernel(block_values, block_ids, draft_to_target, num_entries, draft_token_ids, BLOCK: tl.constexpr):
    """The best over the blocks of one sample. Blocks stand in the order of their ids: the first of equals is lowest."""
    sample = tl.program_id(0).to(tl.int64)
    entry = tl.arange(0, BLOCK)
    values = tl.load(block_values + sample * num_entries + entry, mask=entry < num_entries, other=OUTSIDE)
    _, best = tl.max(values, axis=0, return_indices=True, return_indices_tie_break_left=True)
    chosen = tl.load(block_ids + sample * num_entries + best)
    tl.store(draft_token_ids + sample, tl.load(draft_to_target + chosen).to(tl.int32))


@triton.jit
def merge_candidates_kernel(
    block_values,
    block_ids,
    draft_to_target,
    temperature,
    num_entries,
    num_slots,
    candidate_ids,
    probabilities,
    CANDIDATES: tl.constexpr,
    BLOCK_CANDIDATES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The best CANDIDATES over the blocks of one sample, and their softmax over the temperature of its sequence."""
    sample = tl.program_id(0).to(tl.int64)
    entry = tl.arange(0, BLOCK)
    values = tl.load(block_values + sample * num_entries + entry, mask=entry < num_entries, other=OUTSIDE)
    ranks = tl.arange(0, BLOCK_CANDIDATES)
    taken = tl.full((BLOCK_CANDIDATES,), OUTSIDE, dtype=tl.float32)
    for rank in tl.static_range(CANDIDATES):
        value, best = tl.max(values, axis=0, return_indices=True, return_indices_tie_break_left=True)
        chosen = tl.load(block_ids + sample * num_entries + best)
        tl.store(candidate_ids + sample * CANDIDATES + rank, tl.load(draft_to_target + chosen).to(tl.int32))
        taken = tl.where(ranks == rank, value, taken)
        values = tl.where(entry == best, OUTSIDE, values)
    # Two clamped logits can lie further apart than float32 reaches; the exponential of that is 0, as it should be.
    below = (taken - tl.max(taken, axis=0)) / tl.load(temperature + sample // num_slots)
    weights = tl.exp(below)
    place = probabilities + sample * CANDIDATES + ranks
    tl.store(place, weights / tl.sum(weights, axis=0), mask=ranks < CANDIDATES)
