"""How a run's steps are cut: by a number of segments or a memory budget, told and measured before training starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from peagle_trt.errors import UsageError
from peagle_trt.train.batches import sample_plans
from peagle_trt.train.gradients import Partition, accumulate_gradients
from peagle_trt.train.memory import (
    SegmentCost,
    choose_segments,
    estimate_bytes,
    measure_peak,
    measure_row_bytes,
    segment_costs,
)
from peagle_trt.train.partition import rows_a_pass

if TYPE_CHECKING:
    from peagle_trt.train.acceptance import FrozenTables
    from peagle_trt.train.features import AnswerText, TrainingSequence
    from peagle_trt.train.head import PeagleHead
    from peagle_trt.train.sampling import RowPlan
    from peagle_trt.train.settings import TrainingSettings
    from peagle_trt.train.states import StateSource


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRequest:
    """How steps are to be cut.

    Attributes:
        method: One of `partition.METHODS`.
        num_segments: S for the longest sequence; None leaves steps whole unless there is a budget.
        budget_bytes: Memory that a step may take, above what target and head hold; None for no limit.
    """

    method: str = "cached"
    num_segments: int | None = None
    budget_bytes: int | None = None

    def check(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            UsageError: It does.
        """
        if self.num_segments is not None and self.budget_bytes is not None:
            raise UsageError("a number of segments and a memory budget", hint="give one of the two")
        if self.budget_bytes is not None and self.method != "cached":
            raise UsageError("a memory budget is kept by `cached` partition only", hint="give a number of segments")


def fit_partition(
    head: PeagleHead,
    tables: FrozenTables,
    sequences: Sequence[AnswerText],
    settings: TrainingSettings,
    request: MemoryRequest,
    report: Callable[[str], None],
    states: StateSource,
) -> Partition:
    """Decide how steps are cut; report rows and memory against S, and what one step of the longest sequence takes.

    Args:
        head: The drafter; its gradients are cleared.
        tables: The target's tables.
        sequences: All answers to train on.
        settings: Of the run.
        request: What the user asked for.
        report: Takes a line at a time.
        states: Adds the hidden states of the longest.

    Raises:
        UsageError: No number of segments fits the budget.
    """
    (longest,) = states.complete([max(sequences, key=lambda sequence: len(sequence.token_ids))])
    (plan,) = sample_plans([longest], settings.drop, np.random.default_rng(settings.seed))
    row_bytes = measure_row_bytes(head, tables)
    costs = segment_costs(head, tables, plan, row_bytes)
    _report_costs(costs, plan, report)
    partition = _partition(request, costs, plan)
    peak = measure_peak(lambda: _probe(head, tables, longest, plan, settings, partition), head.device)
    for parameter in head.parameters():
        parameter.grad = None
    limit = partition.max_rows or len(plan.depths)
    estimate = estimate_bytes(head, tables, plan, min(limit, len(plan.depths)), row_bytes)
    grown = (
        "was not measured, this system does not tell"
        if peak is None
        else f"grew from {peak[0] >> 20} to {peak[1] >> 20} MiB"
    )
    report(
        f"one step of the longest answer, {partition.method}, at most {limit} rows a pass: the process {grown}; "
        f"estimated growth {estimate >> 20} MiB"
    )
    return partition


def _partition(request: MemoryRequest, costs: Sequence[SegmentCost], plan: RowPlan) -> Partition:
    if request.budget_bytes is not None:
        num_segments = choose_segments(costs, request.budget_bytes)
    elif request.num_segments is None or request.num_segments == 1:
        return Partition(method=request.method)
    else:
        num_segments = request.num_segments
    return Partition(method=request.method, max_rows=rows_a_pass(len(plan.depths), num_segments, plan))


def _probe(
    head: PeagleHead,
    tables: FrozenTables,
    longest: TrainingSequence,
    plan: RowPlan,
    settings: TrainingSettings,
    partition: Partition,
) -> None:
    accumulate_gradients(head, tables, [longest], [plan], settings=settings.loss, partition=partition)


def _report_costs(costs: Sequence[SegmentCost], plan: RowPlan, report: Callable[[str], None]) -> None:
    report(f"the longest answer has {plan.num_context} slots and {len(plan.depths)} rows; rows of its largest pass:")
    for cost in costs:
        report(
            f"  {cost.num_segments:2} segment(s): {cost.cached_rows:6} cached, {cost.paper_rows:6} recomputed; "
            f"about {cost.num_bytes >> 20} MiB cached"
        )
    if len(costs) > 1:
        report(
            f"  recomputed segments (Algorithm 1) never have fewer than {plan.num_context} rows: the last one carries "
            "every context slot"
        )
