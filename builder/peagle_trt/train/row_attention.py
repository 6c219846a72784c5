"""Attention of training rows: blocks of queries over a prefix of the context and their own rollouts.

No mask of a whole example is ever built. Every row of every mask is a window of one of a few vectors that are computed
once a process: whether context slot j may be read from anchor a depends on j - a alone, and what a rollout's row reads
among its neighbours on its depth and their distance alone.

Shape letters: R rows of a pass, b rows of a block, C context slots, Q query heads, N key-value heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

# Queries a block. A block's scores are Q x b x C floats; wider blocks waste more on keys that none of their rows may
# read, narrower ones run smaller products. 128, 256 and 512 were within 6 % of each other at 8,192 slots on a CPU.
BLOCK_ROWS = 256
MAX_DEPTHS = 64
# Blocks that read more keys than this compute their scores again in the backward pass; shorter ones keep keys and
# values, which costs little there and saves a tenth of a step's time.
KEPT_KEYS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRows:
    """Where the rows of one sequence stand in a pass: consecutive context slots, then whole rollouts.

    Attributes:
        num_prefix: Context slots before them, whose keys and values are held already.
        num_context: Context slots among the rows; the first is slot `num_prefix`.
        anchors: Anchor of each mask row, [M] int64, ascending.
        depths: Depth of each mask row, [M] int64; every rollout counts up from 1.
    """

    num_prefix: int = 0
    num_context: int
    anchors: NDArray[np.int64]
    depths: NDArray[np.int64]

    @property
    def num_rows(self) -> int:
        """Rows of the pass that are this sequence's."""
        return self.num_context + len(self.depths)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysValues:
    """Keys (rotated) and values of consecutive context slots of one layer, both [C, N, D] float32."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskTables:
    """The vectors whose windows are all rows of all additive masks.

    Attributes:
        context: [2 * slots] float32; slot j read from anchor a is `context[slots - 1 - a + j]`.
        rollouts: [MAX_DEPTHS, 2 * BLOCK_ROWS - 1] float32; row j of a block read from row i of depth d is
            `rollouts[d, BLOCK_ROWS - 1 - i + j]`.
    """

    context: Tensor
    rollouts: Tensor

    def context_rows(self, anchors: Tensor, num_slots: int) -> Tensor:
        """What rows with these anchors may read of the first slots, [b, num_slots]."""
        last = len(self.context) // 2 - 1
        return self.context.unfold(0, num_slots, 1)[last - anchors]

    def rollout_rows(self, depths: Tensor) -> Tensor:
        """What the mask rows of a block may read of each other, [b, b]."""
        import torch

        places = torch.arange(len(depths), device=depths.device)
        return self.rollouts.unfold(1, len(depths), 1)[depths, BLOCK_ROWS - 1 - places]


def make_mask_tables(num_slots: int) -> MaskTables:
    """Tables for sequences of up to `num_slots` context slots; 8 bytes a slot, where a mask has 4 bytes a pair."""
    import torch

    context = torch.zeros(2 * num_slots)
    context[num_slots:] = -torch.inf
    offsets = torch.arange(2 * BLOCK_ROWS - 1) - (BLOCK_ROWS - 1)
    depths = torch.arange(MAX_DEPTHS)[:, None]
    blocked = (offsets > 0) | (offsets <= -depths)
    return MaskTables(context=context, rollouts=torch.zeros(blocked.shape).masked_fill_(blocked, -torch.inf))


def attend_rows(
    queries_RQD: Tensor,
    own: KeysValues,
    layouts: Sequence[SequenceRows],
    tables: MaskTables,
    compute_dtype: torch.dtype,
    prefix: KeysValues | None = None,
) -> Tensor:
    """Attention of all rows of a pass, each inside its sequence.

    Args:
        queries_RQD: Rotated queries.
        own: Rotated keys and values of the same rows.
        layouts: The sequences, one after another.
        tables: From `make_mask_tables`.
        compute_dtype: Type of the products.
        prefix: Context that is held already; a pass with one has one sequence.

    Returns:
        [R, Q*D] in `compute_dtype`.
    """
    import torch

    attended, start = [], 0
    for layout in layouts:
        rows = slice(start, start + layout.num_rows)
        mine = KeysValues(keys=own.keys[rows], values=own.values[rows])
        context = _context(mine, layout, prefix)
        for block in _blocks(layout):
            attended.append(_attend_block(queries_RQD[rows][block.rows], context, mine, block, tables, compute_dtype))
        start = rows.stop
    return torch.cat(attended)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Queries that are computed together: `rows` within the sequence, the context slots they see, their anchors."""

    rows: slice
    num_slots: int
    anchors: NDArray[np.int64]
    depths: NDArray[np.int64] | None


def _context(mine: KeysValues, layout: SequenceRows, prefix: KeysValues | None) -> KeysValues:
    import torch

    assert layout.num_prefix == (0 if prefix is None else len(prefix.keys)), "the layout fits its prefix"
    keys, values = mine.keys[: layout.num_context], mine.values[: layout.num_context]
    if prefix is None:
        return KeysValues(keys=keys, values=values)
    return KeysValues(keys=torch.cat([prefix.keys, keys]), values=torch.cat([prefix.values, values]))


def _blocks(layout: SequenceRows) -> Iterator[_Block]:
    for first in range(0, layout.num_context, BLOCK_ROWS):
        last = min(first + BLOCK_ROWS, layout.num_context)
        anchors = np.arange(first, last) + layout.num_prefix
        yield _Block(rows=slice(first, last), num_slots=last + layout.num_prefix, anchors=anchors, depths=None)
    for first, last in cut_rollouts(layout.depths, BLOCK_ROWS):
        anchors = layout.anchors[first:last]
        rows = slice(first + layout.num_context, last + layout.num_context)
        yield _Block(rows=rows, num_slots=int(anchors[-1]) + 1, anchors=anchors, depths=layout.depths[first:last])


def cut_rollouts(depths: NDArray[np.int64], max_rows: int) -> list[tuple[int, int]]:
    """Cut mask rows into runs of whole rollouts, each as long as fits.

    Args:
        depths: Depths of the rows, rollout by rollout, [M].
        max_rows: Rows a run; no rollout may be longer.

    Returns:
        First and last (exclusive) row of each run.
    """
    bounds = np.append(np.flatnonzero(depths == 1), len(depths))
    runs, first = [], 0
    while first < len(depths):
        last = int(bounds[np.searchsorted(bounds, first + max_rows, side="right") - 1])
        assert last > first, "a rollout is longer than a run may be"
        runs.append((first, last))
        first = last
    return runs


def _attend_block(
    queries: Tensor,
    context: KeysValues,
    mine: KeysValues,
    block: _Block,
    tables: MaskTables,
    compute_dtype: torch.dtype,
) -> Tensor:
    import torch
    import torch.nn.functional as functional
    from torch.utils.checkpoint import checkpoint

    anchors = torch.from_numpy(block.anchors).to(queries.device)
    depths = None if block.depths is None else torch.from_numpy(block.depths).to(queries.device)

    def attend(query: Tensor, *parts: Tensor) -> Tensor:
        half = len(parts) // 2
        mask = tables.context_rows(anchors, block.num_slots)
        if depths is not None:
            mask = torch.cat([mask, tables.rollout_rows(depths)], dim=1)
        group = query.shape[1] // parts[0].shape[1]
        key, value = (torch.cat(part).to(compute_dtype).transpose(0, 1) for part in (parts[:half], parts[half:]))
        # [rows, heads, D] to [1, heads, rows, D]; keys of a group of query heads are repeated for this block only.
        result = functional.scaled_dot_product_attention(
            query.to(compute_dtype).transpose(0, 1)[None],
            key.repeat_interleave(group, dim=0)[None],
            value.repeat_interleave(group, dim=0)[None],
            attn_mask=mask.to(compute_dtype)[None, None],
        )
        attended: Tensor = result[0].transpose(0, 1).flatten(1)
        return attended

    keys, values = [context.keys[: block.num_slots]], [context.values[: block.num_slots]]
    if block.depths is not None:
        keys.append(mine.keys[block.rows])
        values.append(mine.values[block.rows])
    if not torch.is_grad_enabled() or block.num_slots <= KEPT_KEYS:
        return attend(queries, *keys, *values)
    result: Tensor = checkpoint(attend, queries, *keys, *values, use_reentrant=False, preserve_rng_state=False)
    return result
