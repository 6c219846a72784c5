"""The kernel behind `block_kernel`: attention of a request's 2K rows over its slot, as far as its tokens reach."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def attend_block_kernel(
    queries,
    keys,
    values,
    slots,
    positions,
    output,
    scale,
    num_key_value_heads,
    capacity,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    """One request and one key-value head a program; its rows are those of all its query heads.

    Layouts: queries and output [G, W, Q, D], keys and values [S, C, N, D], positions [G, W], all contiguous.
    """
    request = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    rows = tl.arange(0, BLOCK_ROWS)
    dims = tl.arange(0, BLOCK_DIM)
    is_row = rows < WIDTH * GROUP
    row, member = rows // GROUP, rows % GROUP
    row_positions = tl.load(positions + request * WIDTH + row, mask=is_row, other=0)
    query_heads = num_key_value_heads * GROUP
    places = ((request * WIDTH + row) * query_heads + head * GROUP + member) * HEAD_DIM
    cell = is_row[:, None] & (dims < HEAD_DIM)[None, :]
    tile = tl.load(queries + places[:, None] + dims[None, :], mask=cell, other=0.0)
    base = tl.load(slots + request) * capacity
    length = tl.max(row_positions, axis=0) + 1

    largest = tl.full((BLOCK_ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_ROWS,), tl.float32)
    mixed = tl.zeros((BLOCK_ROWS, BLOCK_DIM), tl.float32)
    for first in range(0, length, BLOCK_KEYS):
        columns = first + tl.arange(0, BLOCK_KEYS)
        cells = ((base + columns) * num_key_value_heads + head)[:, None] * HEAD_DIM + dims[None, :]
        is_cell = (columns < length)[:, None] & (dims < HEAD_DIM)[None, :]
        key_tile = tl.load(keys + cells, mask=is_cell, other=0.0)
        value_tile = tl.load(values + cells, mask=is_cell, other=0.0)
        scores = tl.dot(tile, tl.trans(key_tile)).to(tl.float32) * scale
        scores = tl.where(columns[None, :] <= row_positions[:, None], scores, float("-inf"))
        # Row 0 of the cache is visible to every row, so the first block already has a finite score.
        raised = tl.maximum(largest, tl.max(scores, axis=1))
        weights = tl.exp(scores - raised[:, None])
        rescale = tl.exp(largest - raised)
        total = total * rescale + tl.sum(weights, axis=1)
        mixed = mixed * rescale[:, None] + tl.dot(weights.to(value_tile.dtype), value_tile).to(tl.float32)
        largest = raised
    tl.store(output + places[:, None] + dims[None, :], (mixed / total[:, None]).to(tile.dtype), mask=cell)
