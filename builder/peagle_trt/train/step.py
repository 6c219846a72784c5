"""The gradients of one step, as the kind of head asks for: sampled mask slots, or rollouts unrolled pass by pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from peagle_trt.train.batches import sample_plans
from peagle_trt.train.gradients import StepSums, accumulate_gradients, step_weight
from peagle_trt.train.settings import TrainingSettings
from peagle_trt.train.unrolled import accumulate_unrolled, unrolled_plan

if TYPE_CHECKING:
    import numpy as np

    from peagle_trt.train.acceptance import FrozenTables
    from peagle_trt.train.features import AnswerText
    from peagle_trt.train.head import PeagleHead
    from peagle_trt.train.states import StateSource


def step_gradients(
    head: PeagleHead,
    tables: FrozenTables,
    chosen: Sequence[AnswerText],
    mine: slice,
    settings: TrainingSettings,
    generator: np.random.Generator,
    states: StateSource,
) -> StepSums:
    """Add one worker's part of a step's gradients to the head's parameters.

    Args:
        head: The drafter.
        tables: The target's frozen tables.
        chosen: All sequences of the step.
        mine: Those that this worker runs.
        settings: Of the run.
        generator: Of the step.
        states: Adds the hidden states of the sequences that this worker runs.

    Returns:
        Loss and counts of this worker's part; all parts add up to the step's.
    """
    num_depths, decay = settings.drop.num_depths, settings.depth_decay
    if not head.config.is_parallel:
        # Every slot of the answer starts a rollout, and every rollout runs through: nothing is drawn.
        weight = step_weight(chosen, [unrolled_plan(sequence, num_depths) for sequence in chosen], decay)
        return accumulate_unrolled(
            head,
            tables,
            states.complete(chosen[mine]),
            settings=settings.loss,
            total_weight=weight,
            num_depths=num_depths,
        )
    # Every worker draws all slots: the draws of a step are one stream, whoever runs them.
    plans = sample_plans(chosen, settings.drop, generator)
    return accumulate_gradients(
        head,
        tables,
        states.complete(chosen[mine]),
        plans[mine],
        settings=settings.loss,
        partition=settings.partition,
        total_weight=step_weight(chosen, plans, decay),
        num_depths=num_depths,
    )
