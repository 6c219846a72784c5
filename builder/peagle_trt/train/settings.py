"""Everything that decides a training's result, apart from data and shape."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from peagle_trt.train.gradients import LossSettings, Partition
from peagle_trt.train.optimizer import OptimizerSettings
from peagle_trt.train.sampling import DropSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """How to train.

    Attributes:
        drop: Which mask slots a step sees.
        optimizer: Rates; its `total_steps` is the length of the run.
        tokens_per_step: Text tokens a step, prompts included.
        objective: The loss, one of `objectives.OBJECTIVES`.
        target_temperature: Divides the target's logits in the loss. Below one it asks for the likeliest token rather
            than for the whole distribution, which is what greedy serving accepts.
        depth_decay: Weight of depth d relative to depth d-1.
        refused_weight: Weight of a row behind a draft that does not agree with the target, relative to the others.
        average_decay: Decay of the running average of weights that is exported; 0 exports the weights themselves.
        max_norm: Limit of the gradient norm.
        seed: Of order and slots.
        save_seconds: Time between two states on disk.
        evaluation_steps: Steps between two evaluations; None evaluates at the end only.
        patience: Evaluations without a better acceptance length after which the run stops; None never stops early.
        partition: How a step is cut into passes; changes memory, speed and rounding only.
    """

    drop: DropSettings = field(default_factory=DropSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    tokens_per_step: int = 3000
    objective: str = "kl"
    target_temperature: float = 1.0
    depth_decay: float = 1.0
    refused_weight: float = 1.0
    average_decay: float = 0.98
    max_norm: float = 1.0
    seed: int = 0
    save_seconds: float = 600.0
    evaluation_steps: int | None = None
    patience: int | None = None
    partition: Partition = field(default_factory=Partition)

    @property
    def loss(self) -> LossSettings:
        """The part that the gradients need."""
        return LossSettings(
            objective=self.objective,
            target_temperature=self.target_temperature,
            depth_decay=self.depth_decay,
            refused_weight=self.refused_weight,
        )

    def facts(self) -> dict[str, object]:
        """What a resumed run must share with the earlier one."""
        return {name: value for name, value in asdict(self).items() if name not in ("save_seconds", "partition")}
