"""The training loop: batches, loss, optimizer, running average, checkpoints that continue exactly, metrics."""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from peagle_trt.train.batches import Batch, batch_orders, make_batch
from peagle_trt.train.optimizer import OptimizerSettings, SplitOptimizer
from peagle_trt.train.sampling import DropSettings

if TYPE_CHECKING:
    from torch import Tensor

    from peagle_trt.train.acceptance import FrozenTables
    from peagle_trt.train.features import TrainingSequence
    from peagle_trt.train.head import PeagleHead

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """Everything that decides the result, apart from data and shape.

    Attributes:
        drop: Which mask slots a step sees.
        optimizer: Rates; its `total_steps` is the length of the run.
        tokens_per_step: Text tokens a step, prompts included.
        target_temperature: Divides the target's logits in the loss. Below one it asks for the likeliest token rather
            than for the whole distribution, which is what greedy serving accepts.
        depth_decay: Weight of depth d relative to depth d-1.
        average_decay: Decay of the running average of weights that is exported; 0 exports the weights themselves.
        max_norm: Limit of the gradient norm.
        seed: Of order and slots.
        save_seconds: Time between two states on disk.
    """

    drop: DropSettings = field(default_factory=DropSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    tokens_per_step: int = 3000
    target_temperature: float = 1.0
    depth_decay: float = 1.0
    average_decay: float = 0.98
    max_norm: float = 1.0
    seed: int = 0
    save_seconds: float = 600.0


class Trainer:
    """One head in training; `run` may be called again after `restore`."""

    def __init__(
        self,
        head: PeagleHead,
        tables: FrozenTables,
        sequences: Sequence[TrainingSequence],
        settings: TrainingSettings,
        folder: Path,
        read_more: Callable[[], Sequence[TrainingSequence]] | None = None,
    ) -> None:
        """Set up a run from its first step.

        Args:
            head: Trained in place.
            tables: The target's frozen tables.
            sequences: All answers to train on.
            settings: The run.
            folder: Takes state.pt and metrics.jsonl.
            read_more: Asked at the start of every epoch for all answers there are by then, the known ones first.
        """
        self.head, self.settings = head, settings
        self.tables, self._sequences, self._folder = tables, sequences, folder
        self._read_more, self._num_sequences = read_more, len(sequences)
        self._optimizer = SplitOptimizer(head.named_parameters(), settings.optimizer, compute_dtype=head.compute_dtype)
        self._average = {name: value.detach().clone() for name, value in head.named_parameters()}
        self._step, self._epoch, self._step_in_epoch = 0, 0, 0
        folder.mkdir(parents=True, exist_ok=True)

    def run(
        self, on_save: Callable[[Trainer], dict[str, float]] | None = None, max_steps: int | None = None
    ) -> list[float]:
        """Train to the end of the schedule.

        Args:
            on_save: Called after each state on disk and at the end; what it returns joins the metrics.
            max_steps: Stop earlier, after this many steps of this call.

        Returns:
            The loss of each step.
        """
        losses: list[float] = []
        saved = time.monotonic()
        for indices in self._orders():
            if self._step >= self.settings.optimizer.total_steps or len(losses) == max_steps:
                break
            losses.append(self._train_step(indices))
            if time.monotonic() - saved > self.settings.save_seconds:
                self._save(on_save)
                saved = time.monotonic()
        self._save(on_save)
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
        """Continue from state.pt in the run's folder; losses are the ones an unbroken run would have had."""
        import torch

        state = torch.load(self._folder / "state.pt", weights_only=True)
        self.head.load_state_dict(state["head"])
        self._optimizer.restore(state["optimizer"])
        self._average = state["average"]
        self._step, self._epoch, self._step_in_epoch = state["step"], state["epoch"], state["step_in_epoch"]
        self._num_sequences = state["num_sequences"]

    def start_from(self, folder: Path) -> None:
        """Begin this run with the averaged weights of an earlier one of the same shape; its schedule is not continued.

        Args:
            folder: The earlier run's folder.
        """
        import torch

        earlier = torch.load(folder / "state.pt", weights_only=True)
        self.head.load_state_dict(earlier["head"])
        with torch.no_grad():
            for name, value in self.head.named_parameters():
                value.copy_(earlier["average"][name])
                self._average[name].copy_(value)

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
        import torch

        from peagle_trt.train.loss import distillation_loss

        began = time.monotonic()
        generator = np.random.default_rng((self.settings.seed, self._step))
        chosen = [self._sequences[index] for index in indices]
        batch = make_batch(chosen, self.settings.drop, self.head.config.mask_token_id, generator)
        weights = torch.pow(torch.tensor(self.settings.depth_decay), batch.depths)
        hidden_RH = self.head(batch.rows, self.tables.embeddings_VH)
        parts = distillation_loss(
            hidden_RH[batch.supervised_rows],
            batch.target_normed_UH / self.settings.target_temperature,
            batch.target_indices,
            self.tables.head_DH,
            weights / weights.sum(),
        )
        torch.autograd.backward(parts.loss)
        norm = self._optimizer.step(self._step, max_norm=self.settings.max_norm)
        self._update_average()
        loss = float(parts.loss.detach())
        agreement = _by_depth(parts.agrees_S.float(), batch, self.settings.drop.num_depths)
        self._record(loss=loss, gradient_norm=norm, agreement=agreement, seconds=time.monotonic() - began)
        self._step += 1
        self._step_in_epoch += 1
        return loss

    def _update_average(self) -> None:
        # The decay grows from zero, so that early averages do not hold on to the first, random weights.
        decay = min(self.settings.average_decay, (1 + self._step) / (10 + self._step))
        for name, value in self.head.named_parameters():
            self._average[name].lerp_(value.detach(), 1.0 - decay)

    def _record(self, **values: Any) -> None:
        with (self._folder / "metrics.jsonl").open("a") as stream:
            stream.write(json.dumps({"step": self._step, "epoch": self._epoch, **values}) + "\n")
        if self._step % 20 == 0:
            logger.info("step %d: %s", self._step, values)

    def _save(self, on_save: Callable[[Trainer], dict[str, float]] | None) -> None:
        import torch

        staging = self._folder / "state.pt.part"
        state = {
            "head": self.head.state_dict(),
            "optimizer": self._optimizer.state(),
            "average": self._average,
            "step": self._step,
            "epoch": self._epoch,
            "step_in_epoch": self._step_in_epoch,
            "num_sequences": self._num_sequences,
        }
        torch.save(state, staging)
        staging.rename(self._folder / "state.pt")
        if on_save is not None:
            self._record(**on_save(self))


def _by_depth(values_S: Tensor, batch: Batch, num_depths: int) -> list[float]:
    """Mean of a row-wise value for each depth."""
    means = [float(values_S[batch.depths == depth].mean()) for depth in range(num_depths)]
    return [round(value, 4) for value in means]
