"""How much memory a step takes: estimated before training, measured on one step, and cut to a budget.

What a row of a pass leaves behind for its backward pass is counted rather than derived: autograd reports every tensor
that it keeps.

Shape letters: R rows, L context slots, V draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from peagle_trt.errors import UsageError
from peagle_trt.train.partition import peak_rows
from peagle_trt.train.row_attention import BLOCK_ROWS, KEPT_KEYS, SequenceRows

if TYPE_CHECKING:
    import torch

    from peagle_trt.train.acceptance import FrozenTables
    from peagle_trt.train.head import PeagleHead
    from peagle_trt.train.sampling import RowPlan

SEGMENT_CHOICES = (1, 2, 4, 8, 16, 32, 64)
# Kept tensors are not all of a pass: there are gradients on their way down, and memory that the allocator could not fit
# together again between passes of different sizes. Fitted to measured peaks of whole and of cut steps, 1 to 16
# segments at 2,048 and 8,192 slots on a CPU: estimates were 2 % to 29 % above them (docs/training.md).
WHOLE_ALLOWANCE, CUT_ALLOWANCE = 1.15, 1.6
# Libraries that the first step loads, and buffers that they keep.
FIRST_STEP_BYTES = 128 << 20
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentCost:
    """What cutting the longest sequence into S costs.

    Attributes:
        num_segments: S.
        cached_rows: Rows of the largest pass when the context's keys and values are held.
        paper_rows: The same under Algorithm 1.
        num_bytes: Estimated peak memory of a step, held context, above what the process holds before.
    """

    num_segments: int
    cached_rows: int
    paper_rows: int
    num_bytes: int


def segment_costs(head: PeagleHead, tables: FrozenTables, plan: RowPlan, row_bytes: int) -> list[SegmentCost]:
    """Rows and estimated memory for every number of segments worth a look.

    Args:
        head: The drafter.
        tables: The target's tables.
        plan: Rows of the longest sequence.
        row_bytes: From `measure_row_bytes`.
    """
    numbers = [number for number in SEGMENT_CHOICES if number <= max(1, len(plan.depths) // BLOCK_ROWS)]
    return [
        SegmentCost(
            num_segments=number,
            cached_rows=peak_rows(plan, number, "cached"),
            paper_rows=peak_rows(plan, number, "recomputed"),
            num_bytes=estimate_bytes(head, tables, plan, peak_rows(plan, number, "cached"), row_bytes),
        )
        for number in numbers
    ]


def choose_segments(costs: Sequence[SegmentCost], budget_bytes: int) -> int:
    """The smallest number of segments whose estimate fits.

    Raises:
        UsageError: None does.
    """
    for cost in costs:
        if cost.num_bytes <= budget_bytes:
            return cost.num_segments
    least = costs[-1]
    raise UsageError(
        f"a step needs about {least.num_bytes >> 20} MiB even in {least.num_segments} segments; the budget is "
        f"{budget_bytes >> 20} MiB",
        hint="raise --memory-budget, or train on shorter sequences or a smaller head",
    )


def estimate_bytes(head: PeagleHead, tables: FrozenTables, plan: RowPlan, max_rows: int, row_bytes: int) -> int:
    """Peak memory of a step above what the process holds before it.

    Args:
        head: The drafter.
        tables: The target's tables.
        plan: Rows of the longest sequence.
        max_rows: Of a pass.
        row_bytes: From `measure_row_bytes`.
    """
    config, num_slots = head.config, plan.num_context
    gradients = sum(parameter.nbytes for parameter in head.parameters())
    slot_bytes = 2 * 4 * config.num_key_value_heads * config.head_dim
    # Held keys and values, the gradients they are owed, and a pass's own copies of both.
    is_cut = max_rows < len(plan.depths)
    context = 4 * slot_bytes * num_slots * config.num_layers if is_cut else 0
    # Blocks over short contexts keep their keys and values, repeated for every head, and their masks.
    width = 2 * config.num_attention_heads * config.head_dim + BLOCK_ROWS
    num_short = max_rows * min(1.0, KEPT_KEYS / num_slots)
    kept = 4 * num_short * (min(num_slots, KEPT_KEYS) + BLOCK_ROWS) * width / BLOCK_ROWS * config.num_layers
    scores = 4 * BLOCK_ROWS * num_slots * (config.num_attention_heads + 2)
    logits = 6 * 4 * 128 * len(tables.head_DH)
    rows = (CUT_ALLOWANCE if is_cut else WHOLE_ALLOWANCE) * row_bytes * max_rows
    return FIRST_STEP_BYTES + gradients + context + scores + logits + int(kept + rows)


def measure_row_bytes(head: PeagleHead, tables: FrozenTables) -> int:
    """Bytes that one more row of a pass keeps for the backward pass, counted through autograd.

    The rows stand over a context that is long enough for their scores not to be kept.
    """
    few, many = (_kept_bytes(head, tables, num_rollouts) for num_rollouts in (64, 128))
    return (many - few) // 64


def measure_peak(run: Callable[[], object], device: torch.device) -> tuple[int, int] | None:
    """What was held before `run`, and the most while it ran, bytes; None where the system does not tell.

    On a GPU it is what torch's allocator held there, elsewhere the process's memory.
    """
    import torch

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        held = torch.cuda.memory_allocated(device)
        run()
        return held, torch.cuda.max_memory_allocated(device)
    try:
        _CLEAR.write_text("5")
        before = _status_bytes("VmRSS")
        run()
        return before, _status_bytes("VmHWM")
    except (OSError, StopIteration):
        return None


def _kept_bytes(head: PeagleHead, tables: FrozenTables, num_rollouts: int) -> int:
    import torch

    from peagle_trt.train.head import HeadRows
    from peagle_trt.train.row_attention import KeysValues

    config = head.config
    num_prefix = min(KEPT_KEYS + 1, config.max_positions - 1)
    sizes = (num_prefix, config.num_key_value_heads, config.head_dim)
    empty = torch.zeros(sizes, device=head.device)
    prefix = [KeysValues(keys=empty.clone(), values=empty.clone()) for _ in range(config.num_layers)]
    none = np.ones(num_rollouts, dtype=np.int64)
    rows = HeadRows(
        token_ids_R=torch.full((num_rollouts,), config.mask_token_id, device=head.device),
        auxiliary_RA=torch.zeros(num_rollouts, len(head.auxiliary_scale_A), device=head.device),
        is_mask_R=torch.ones(num_rollouts, dtype=torch.bool, device=head.device),
        positions_R=torch.full((num_rollouts,), num_prefix, device=head.device),
        layouts=[SequenceRows(num_prefix=num_prefix, num_context=0, anchors=none * (num_prefix - 1), depths=none)],
    )
    own = {p.untyped_storage().data_ptr() for p in [*head.parameters(), *head.buffers(), tables.embeddings_VH]}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = head(rows, tables.embeddings_VH, prefix)
    # Blocks that compute their scores again hold queries, keys and values, which autograd does not report.
    width = (config.num_attention_heads + 2 * config.num_key_value_heads) * config.head_dim
    attended = 4 * num_rollouts * width * config.num_layers
    del result
    return sum(kept.values()) + attended


def _status_bytes(name: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) << 10
