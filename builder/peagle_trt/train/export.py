"""Heads on their way out of a training: written, read back, measured behind the decode loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peagle_trt.train.acceptance import Acceptance, FrozenTables, freeze_tables, measure_acceptance
from peagle_trt.train.checkpoint import read_head, write_head
from peagle_trt.train.curves import draw_curves
from peagle_trt.train.evaluation import MAX_SLOTS, TorchEngine, acceptance_metrics, decode_prompts
from peagle_trt.train.run_state import WORK_NAME
from peagle_trt.train.states import complete_each

if TYPE_CHECKING:
    from peagle_trt.train.features import AnswerText
    from peagle_trt.train.states import StateSource
    from peagle_trt.train.target import TorchTarget
    from peagle_trt.train.trainer import Trainer

# Held-out prompts that the decode loop answers at every evaluation, at most.
MAX_EVALUATED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadExport:
    """Writes heads and measures them as they are on disk, in bfloat16.

    Attributes:
        folder: Takes the best head; `work` in it takes the candidates and the picture.
        target: The model.
        tables: Its tables.
        held_out: Answers that are not trained on.
        states: Adds their hidden states.
        draft_tokens: K to measure with.
        max_new_tokens: How far the decode loop answers a prompt.
        report: Takes a line.
    """

    folder: Path
    target: TorchTarget
    tables: FrozenTables
    held_out: Sequence[AnswerText]
    states: StateSource
    draft_tokens: int
    max_new_tokens: int
    report: Callable[[str], None]

    def evaluate(self, trainer: Trainer) -> dict[str, Any]:
        """Write the candidate and let the decode loop answer held-out prompts with it."""
        folder = self.folder / "work/candidate"
        self._write(folder, trainer)
        head, tables = self._read(folder)
        prompts = [s.token_ids[: s.prompt_length].tolist() for s in self.held_out[:MAX_EVALUATED]]
        engine = TorchEngine(
            self.target,
            head,
            tables,
            draft_tokens=self.draft_tokens,
            num_slots=min(MAX_SLOTS, len(prompts)),
            max_length=min(max(map(len, prompts)) + self.max_new_tokens, self.target.config.max_positions),
        )
        answers = decode_prompts(
            engine, prompts, max_new_tokens=self.max_new_tokens, end_ids=self.target.config.eos_token_ids
        )
        found = acceptance_metrics(answers, self.draft_tokens)
        self.report(
            f"step {trainer.step}: acceptance length {found['acceptance_length']:.3f} at "
            f"K={self.draft_tokens} on {len(prompts)} held-out prompts"
        )
        work = self.folder / WORK_NAME
        draw_curves(work / "run", work / "curves.svg")
        return found

    def publish(self, trainer: Trainer) -> None:
        """Make this head the training's result."""
        self._write(self.folder, trainer)

    def walk(self) -> Acceptance:
        """Measure the result over the whole held-out answers."""
        head, tables = self._read(self.folder)
        return measure_acceptance(
            head, tables, complete_each(self.states, self.held_out), draft_tokens=self.draft_tokens
        )

    def _write(self, folder: Path, trainer: Trainer) -> None:
        vocabulary = self.tables.draft_to_target_D.cpu().numpy()
        write_head(folder, trainer.head, vocabulary, self.target.config, trainer.averaged_state())

    def _read(self, folder: Path) -> tuple[Any, FrozenTables]:
        import torch

        target = self.target
        head, draft_to_target = read_head(folder, torch.float32)
        head.to(target.device)
        return head, freeze_tables(target.embeddings_VH, target.head_VH, draft_to_target, torch.float32)
