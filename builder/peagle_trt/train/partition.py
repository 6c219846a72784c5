"""Sequence partition: one sequence's rows in pieces whose losses and gradients add up to the whole sequence's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from peagle_trt.train.row_attention import cut_rollouts
from peagle_trt.train.sampling import RowPlan

if TYPE_CHECKING:
    from numpy.typing import NDArray

METHODS = {
    "cached": "the context's keys and values are kept for the rollouts, and their gradients for the context",
    "recomputed": "the paper's Algorithm 1: every segment runs all context slots before it again",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Rows of a plan that run together under Algorithm 1.

    Attributes:
        rows: Their indices in the plan, ascending: context first.
        is_owned: Which of them this segment answers for; the others are context for them.
    """

    rows: NDArray[np.intp]
    is_owned: NDArray[np.bool_]


def assign_segments(plan: RowPlan, num_segments: int) -> NDArray[np.int64]:
    """The segment that owns each row of a whole sequence's plan, [R] int64.

    The context slots and the first mask slots go by their position, every deeper slot to where the slot before it went;
    a rollout's mask slots therefore share a segment, found from its first position.

    Source: P-EAGLE (arXiv 2602.01469), Algorithm 1, phases 1 and 2.
    """
    first_positions = plan.anchors + (plan.depths > 0)
    owners: NDArray[np.int64] = np.minimum(first_positions * num_segments // plan.num_context, num_segments - 1)
    return owners


def paper_segments(plan: RowPlan, num_segments: int) -> list[Segment]:
    """Algorithm 1: each segment's own rows, and every context slot up to its end.

    The last segment holds all context slots, so its rows do not fall below the sequence's length however many
    segments there are.

    Args:
        plan: A whole sequence's rows.
        num_segments: S.

    Returns:
        Segments that own a row; each row has one owner.

    Source: P-EAGLE (arXiv 2602.01469), Algorithm 1, phase 3: N_s holds the context positions below B_{s+1}.
    """
    owners = assign_segments(plan, num_segments)
    segments = []
    for number in range(num_segments):
        rows = np.flatnonzero((owners == number) | ((plan.depths == 0) & (owners < number)))
        is_owned = owners[rows] == number
        if is_owned.any():
            segments.append(Segment(rows=rows, is_owned=is_owned))
    return segments


def rollout_pieces(plan: RowPlan, max_rows: int) -> list[RowPlan]:
    """The mask rows alone, in pieces of whole rollouts."""
    masked = plan.take(slice(plan.num_context, None))
    return [masked.take(slice(first, last)) for first, last in cut_rollouts(masked.depths, max_rows)]


def context_pieces(plan: RowPlan, max_rows: int) -> list[RowPlan]:
    """The context slots alone, in pieces of nearly equal length."""
    num_pieces = -(-plan.num_context // max_rows)
    return [plan.take(slice(part[0], part[-1] + 1)) for part in np.array_split(np.arange(plan.num_context), num_pieces)]


def keeps_context(plan: RowPlan, max_rows: int) -> bool:
    """Whether the context's graph may stay alive while rollouts run; beyond half of the rows, they would have too few.

    With 8 depths and r = 0.8 a sequence has 4.2 rows a slot: this holds for two segments, and nothing runs twice then.
    """
    return plan.num_context + max(plan.num_context, int(plan.depths.max(initial=1))) <= max_rows


def peak_rows(plan: RowPlan, num_segments: int, method: str) -> int:
    """Most rows whose graph is alive at once.

    Args:
        plan: A whole sequence's rows.
        num_segments: S; `rows_a_pass` says what it means for `cached`.
        method: One of `METHODS`.
    """
    if num_segments == 1:
        return len(plan.depths)
    if method == "recomputed":
        return max(len(segment.rows) for segment in paper_segments(plan, num_segments))
    limit = rows_a_pass(len(plan.depths), num_segments, plan)
    if keeps_context(plan, limit):
        rollouts = rollout_pieces(plan, limit - plan.num_context)
        return plan.num_context + max((len(piece.depths) for piece in rollouts), default=0)
    return max(len(piece.depths) for piece in [*context_pieces(plan, limit), *rollout_pieces(plan, limit)])


def rows_a_pass(num_rows: int, num_segments: int, plan: RowPlan) -> int:
    """The limit that cuts a sequence into S passes of like size, never below its longest rollout."""
    return max(-(-num_rows // num_segments), int(plan.depths.max(initial=1)))


def expected_rows(num_context: int, num_depths: int, retention: float, floor: float) -> int:
    """Rows that sampling draws for a sequence that is supervised throughout."""
    shares = [max(retention**depth, floor) for depth in range(1, num_depths)]
    return num_context + sum(int(max(0, num_context - depth) * share) for depth, share in enumerate(shares, start=1))
