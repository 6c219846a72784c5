"""The training loop: batches, gradients, optimizer, running average, evaluation, states that continue exactly."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from peagle_trt.errors import PeagleError
from peagle_trt.train.batches import batch_orders
from peagle_trt.train.gradients import StepSums
from peagle_trt.train.optimizer import SplitOptimizer
from peagle_trt.train.run_state import check_facts, read_state, rewind_metrics, write_metrics, write_state
from peagle_trt.train.settings import TrainingSettings
from peagle_trt.train.states import StateSource, StoredStates
from peagle_trt.train.step import step_gradients
from peagle_trt.train.workers import Workers

if TYPE_CHECKING:
    from torch import Tensor

    from peagle_trt.train.acceptance import FrozenTables
    from peagle_trt.train.features import AnswerText
    from peagle_trt.train.head import PeagleHead

logger = logging.getLogger(__name__)

ACCEPTANCE_KEY = "acceptance_length"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watchers:
    """Who is called on the way; all may be left out.

    Attributes:
        on_save: After each state on disk and at the end; what it returns joins the metrics.
        on_step: After each step, with the steps taken so far and the loss.
        evaluate: Measures the head; its `acceptance_length` decides which head is the best and when to stop.
        on_best: After an evaluation that was better than all before it.
    """

    on_save: Callable[[Trainer], dict[str, float]] | None = None
    on_step: Callable[[int, float], None] | None = None
    evaluate: Callable[[Trainer], dict[str, Any]] | None = None
    on_best: Callable[[Trainer], None] | None = None


class Trainer:
    """One head in training; `run` may be called again after `restore`."""

    def __init__(
        self,
        head: PeagleHead,
        tables: FrozenTables,
        sequences: Sequence[AnswerText],
        settings: TrainingSettings,
        folder: Path,
        read_more: Callable[[], Sequence[AnswerText]] | None = None,
        *,
        states: StateSource | None = None,
        workers: Workers | None = None,
        facts: Mapping[str, object] | None = None,
    ) -> None:
        """Set up a run from its first step.

        Args:
            head: Trained in place.
            tables: The target's frozen tables.
            sequences: All answers to train on.
            settings: The run.
            folder: Takes state.pt and metrics.jsonl.
            read_more: Asked at the start of every epoch for all answers there are by then, the known ones first.
            states: Adds hidden states to the answers of a step; None is `StoredStates`.
            workers: The processes that share each step; None is this one alone.
            facts: What a resumed run must share with this one, by name.
        """
        self.head, self.settings = head, settings
        self.tables, self._sequences, self._folder = tables, sequences, folder
        self._read_more, self._num_sequences = read_more, len(sequences)
        self._states = states or StoredStates()
        self._workers, self._facts = workers or Workers(), dict(facts or {})
        self._optimizer = SplitOptimizer(head.named_parameters(), settings.optimizer, compute_dtype=head.compute_dtype)
        self._average = {name: value.detach().clone() for name, value in head.named_parameters()}
        self._step, self._epoch, self._step_in_epoch = 0, 0, 0
        self._best, self._best_step, self._num_worse = -math.inf, 0, 0
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def step(self) -> int:
        """Steps taken."""
        return self._step

    @property
    def best(self) -> tuple[float, int] | None:
        """Best acceptance length so far and the step it was measured at; None before the first evaluation."""
        return None if self._best == -math.inf else (self._best, self._best_step)

    @property
    def is_stopped(self) -> bool:
        """Whether acceptance has not grown for as many evaluations as `patience` grants."""
        return self.settings.patience is not None and self._num_worse >= self.settings.patience

    def run(
        self,
        on_save: Callable[[Trainer], dict[str, float]] | None = None,
        max_steps: int | None = None,
        *,
        watchers: Watchers | None = None,
    ) -> list[float]:
        """Train to the end of the schedule, or until acceptance stops growing.

        Args:
            on_save: Called after each state on disk and at the end; what it returns joins the metrics.
            max_steps: Stop earlier, after this many steps of this call.
            watchers: Who else is called on the way.

        Returns:
            The loss of each step.

        Raises:
            PeagleError: A loss is no number; the state on disk is the last one before.
            MachineError: The disk is full.
        """
        watching = watchers or Watchers(on_save=on_save)
        if self._step == 0 and self._workers.is_first:
            # A run that was killed before its first state may have left metrics behind.
            rewind_metrics(self._folder, 0)
        losses: list[float] = []
        saved = time.monotonic()
        for indices in self._orders():
            if self._step >= self.settings.optimizer.total_steps or len(losses) == max_steps or self.is_stopped:
                break
            losses.append(self._train_step(indices))
            if watching.on_step is not None:
                watching.on_step(self._step, losses[-1])
            is_due = self._evaluation_is_due()
            if is_due:
                self._evaluate(watching)
            # A state follows each evaluation, so that a resumed run never judges the same step twice.
            if is_due or time.monotonic() - saved > self.settings.save_seconds:
                self._save(watching)
                saved = time.monotonic()
        self._save(watching)
        return losses

    def averaged_state(self) -> dict[str, Tensor]:
        """The folded weights to export: the running average, corrected for its start by construction."""
        import torch

        current = {name: value.detach().clone() for name, value in self.head.named_parameters()}
        with torch.no_grad():
            for name, value in self.head.named_parameters():
                value.copy_(self._average[name])
            folded = self.head.folded_state()
            for name, value in self.head.named_parameters():
                value.copy_(current[name])
        return folded

    def restore(self) -> None:
        """Continue from state.pt in the run's folder; losses are the ones an unbroken run would have had.

        Raises:
            UsageError: There is no state, or it is of a run with other facts.
            CheckpointError: It is damaged.
        """
        state = read_state(self._folder)
        check_facts(state, self._facts)
        self.head.load_state_dict(state["head"])
        self._optimizer.restore(state["optimizer"])
        self._average = {name: value.to(self.head.device) for name, value in state["average"].items()}
        self._step, self._epoch, self._step_in_epoch = state["step"], state["epoch"], state["step_in_epoch"]
        self._num_sequences = state["num_sequences"]
        self._best, self._best_step, self._num_worse = state["best"]
        if self._workers.is_first:
            rewind_metrics(self._folder, self._step)

    def _orders(self) -> Iterator[list[int]]:
        while True:
            if self._read_more is not None and self._step_in_epoch == 0:
                self._sequences = self._read_more()
                self._num_sequences = len(self._sequences)
            lengths = [len(sequence.token_ids) for sequence in self._sequences[: self._num_sequences]]
            orders = batch_orders(
                lengths, tokens_per_step=self.settings.tokens_per_step, seed=self.settings.seed, epoch=self._epoch
            )
            yield from itertools.islice(orders, self._step_in_epoch, None)
            self._epoch, self._step_in_epoch = self._epoch + 1, 0

    def _train_step(self, indices: list[int]) -> float:
        began = time.monotonic()
        sums = self._gradients(indices)
        norm = self._optimizer.step(self._step, max_norm=self.settings.max_norm)
        self._update_average()
        self._record(
            loss=sums.loss,
            gradient_norm=norm,
            agreement=_shares(sums),
            peak_rows=sums.peak_rows,
            seconds=time.monotonic() - began,
        )
        self._step += 1
        self._step_in_epoch += 1
        return sums.loss

    def _gradients(self, indices: list[int]) -> StepSums:
        """This worker's part of the step, added to the others'."""
        import torch

        generator = np.random.default_rng((self.settings.seed, self._step))
        chosen = [self._sequences[index] for index in indices]
        mine = slice(self._workers.rank, None, self._workers.count)
        sums = step_gradients(self.head, self.tables, chosen, mine, self.settings, generator, self._states)
        self._refuse_broken([indices[mine][place] for place in sorted(sums.broken_origins)])
        parameters = [parameter for parameter in self.head.parameters() if parameter.requires_grad]
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        loss = torch.tensor([sums.loss])
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        self._workers.add_up([loss, sums.agreements, sums.counts, *gradients])
        if self._workers.count > 1:
            sums.loss = float(loss)
        return sums

    def _refuse_broken(self, broken: list[int]) -> None:
        found = sorted({index for part in self._workers.gather(broken) for index in part})  # type: ignore[attr-defined]
        if found:
            raise PeagleError(
                f"step {self._step}: the loss is not a finite number; first in example `{found[0]}` of the answers",
                hint=f"the last good state is kept in `{self._folder}`; look at that example's hidden states, or lower "
                "--learning-rate",
            )

    def _update_average(self) -> None:
        # The decay grows from zero, so that early averages do not hold on to the first, random weights.
        decay = min(self.settings.average_decay, (1 + self._step) / (10 + self._step))
        for name, value in self.head.named_parameters():
            self._average[name].lerp_(value.detach(), 1.0 - decay)

    def _evaluation_is_due(self) -> bool:
        every = self.settings.evaluation_steps
        is_last = self._step == self.settings.optimizer.total_steps
        return is_last or (every is not None and self._step % every == 0)

    def _evaluate(self, watching: Watchers) -> None:
        if watching.evaluate is None:
            return
        # The first worker measures and all hear of it: they must agree on when to stop.
        measured = watching.evaluate(self) if self._workers.is_first else {}
        found = self._workers.gather(measured)[0]
        assert isinstance(found, dict)
        self._record(**found)
        if found[ACCEPTANCE_KEY] > self._best:
            self._best, self._best_step, self._num_worse = found[ACCEPTANCE_KEY], self._step, 0
            if watching.on_best is not None and self._workers.is_first:
                watching.on_best(self)
        else:
            self._num_worse += 1

    def _record(self, **values: Any) -> None:
        if not self._workers.is_first:
            return
        write_metrics(self._folder, {"step": self._step, "epoch": self._epoch, **values})
        if self._step % 20 == 0:
            logger.info("step %d: %s", self._step, values)

    def _save(self, watching: Watchers) -> None:
        if not self._workers.is_first:
            return
        state = {
            "head": self.head.state_dict(),
            "optimizer": self._optimizer.state(),
            "average": self._average,
            "step": self._step,
            "epoch": self._epoch,
            "step_in_epoch": self._step_in_epoch,
            "num_sequences": self._num_sequences,
            "best": (self._best, self._best_step, self._num_worse),
            "facts": {name: repr(value) for name, value in self._facts.items()},
        }
        write_state(self._folder, state)
        if watching.on_save is not None:
            self._record(**watching.on_save(self))


def _shares(sums: StepSums) -> list[float | None]:
    """Share of the rows of each depth where drafter and target agree; None for a depth without rows."""
    pairs = zip(sums.agreements.tolist(), sums.counts.tolist(), strict=True)
    return [round(agreed / count, 4) if count else None for agreed, count in pairs]
