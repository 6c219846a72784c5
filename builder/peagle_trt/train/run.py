"""A whole training: questions in, a head's checkpoint out; the room's front door."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from peagle_trt.errors import CheckpointError, UsageError
from peagle_trt.train.acceptance import Acceptance, FrozenTables, freeze_tables, measure_acceptance
from peagle_trt.train.checkpoint import read_head, write_head
from peagle_trt.train.collect import CollectionPlan, collect_features
from peagle_trt.train.features import TrainingSequence, read_all_sequences
from peagle_trt.train.llama import LlamaTarget, read_llama
from peagle_trt.train.prompting import ChatFormat, read_chat_format
from peagle_trt.train.question_files import read_question_file
from peagle_trt.train.start import auxiliary_scale, copy_last_layers, count_tokens, drafter_config, seeded_head
from peagle_trt.train.trainer import Trainer, TrainingSettings
from peagle_trt.train.vocabulary import choose_draft_vocabulary

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

# Share of the answers kept out of training to measure on, and the most that are needed.
HELD_OUT_SHARE, MAX_HELD_OUT = 0.05, 32
SHORTEST_ANSWER = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRequest:
    """What to train.

    Attributes:
        target_path: Checkpoint folder or GGUF file.
        questions_path: JSON lines; see `question_files`.
        output_path: Takes the head, and under `work` everything that a resumed run needs.
        num_layers: Layers of the head.
        auxiliary_layers: Target layers whose input it reads; None is (2, n//2, n-3).
        draft_vocab_size: Rows of its lm_head; None covers 98.5 % of the answers.
        mask_token_id: A token of the target that no text holds; None looks for one.
        max_new_tokens: Longest answer to train on.
        draft_tokens: K to measure with.
        compute_dtype: `float32`, or `bfloat16` where the processor has it.
        is_resumed: Continue from the last state.
        settings: The loop's settings.
    """

    target_path: Path
    questions_path: Path
    output_path: Path
    num_layers: int = 2
    auxiliary_layers: tuple[int, ...] | None = None
    draft_vocab_size: int | None = None
    mask_token_id: int | None = None
    max_new_tokens: int = 224
    draft_tokens: int = 5
    compute_dtype: str = "float32"
    is_resumed: bool = False
    settings: TrainingSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingReport:
    """What came out.

    Attributes:
        num_answers: Answers trained on.
        num_answer_tokens: Their generated tokens.
        draft_vocab_size: Rows of the head's lm_head.
        mask_token_id: Token of its mask slots.
        last_loss: Mean loss of the last 20 steps of this call; None when it took none.
        held_out: Walk over held-out answers.
    """

    num_answers: int
    num_answer_tokens: int
    draft_vocab_size: int
    mask_token_id: int
    last_loss: float | None
    held_out: Acceptance


def train_head(request: TrainingRequest, *, report: Callable[[str], None]) -> TrainingReport:
    """Let the target answer, train a head on the answers, write it, measure it.

    Args:
        request: Paths and settings.
        report: Takes a line at a time about what is going on.

    Returns:
        Counts, loss and acceptance length.

    Raises:
        UsageError: There is a state and `is_resumed` is not set, or the other way round.
        CheckpointError: The target does not fit, or its answers are too few.
    """
    import torch

    work = request.output_path / "work"
    _check_state(work / "run/state.pt", is_resumed=request.is_resumed)
    target = read_llama(request.target_path, getattr(torch, request.compute_dtype), request.auxiliary_layers)
    chat = read_chat_format(request.target_path, target.config.eos_token_ids[0])
    questions = read_question_file(request.questions_path)
    report(f"the target answers {len(questions)} questions")
    plan = CollectionPlan(max_new_tokens=request.max_new_tokens)
    collect_features(target, chat, questions, folder=work / "features", plan=plan)
    answers = [
        s for s in read_all_sequences(work / "features") if len(s.token_ids) - s.prompt_length >= SHORTEST_ANSWER
    ]
    num_held_out = min(MAX_HELD_OUT, int(len(answers) * HELD_OUT_SHARE) + 1)
    if len(answers) <= num_held_out:
        raise CheckpointError(f"the target gave only `{len(answers)}` answers of {SHORTEST_ANSWER} tokens or more")
    trainer, tables = _start(request, target, chat, answers[num_held_out:], work / "run")
    if request.is_resumed:
        trainer.restore()

    def export(current: Trainer) -> dict[str, float]:
        walked = _export_and_walk(request, target, current, tables, answers[:num_held_out])
        report(f"acceptance length {walked.length:.3f} at K={request.draft_tokens} on {num_held_out} held-out answers")
        return {"acceptance_length": walked.length}

    losses = trainer.run(export)[-20:]
    return TrainingReport(
        num_answers=len(answers) - num_held_out,
        num_answer_tokens=sum(len(s.token_ids) - s.prompt_length for s in answers[num_held_out:]),
        draft_vocab_size=trainer.head.config.draft_vocab_size,
        mask_token_id=trainer.head.config.mask_token_id,
        last_loss=sum(losses) / len(losses) if losses else None,
        held_out=_export_and_walk(request, target, trainer, tables, answers[:num_held_out]),
    )


def new_trainer(
    target: LlamaTarget,
    sequences: Sequence[TrainingSequence],
    settings: TrainingSettings,
    folder: Path,
    *,
    draft_to_target: NDArray[np.int64],
    mask_token_id: int,
    num_layers: int = 2,
    compute_dtype: torch.dtype,
    read_more: Callable[[], Sequence[TrainingSequence]] | None = None,
) -> tuple[Trainer, FrozenTables]:
    """A fresh head for these answers, started from the target's last layers, and its trainer."""
    config = drafter_config(
        target.config,
        aux_layer_ids=target.auxiliary_layers,
        num_layers=num_layers,
        draft_vocab_size=len(draft_to_target),
        mask_token_id=mask_token_id,
        num_depths=settings.drop.num_depths,
    )
    tables = freeze_tables(target.embeddings_VH, target.head_VH, draft_to_target, compute_dtype)
    head = seeded_head(config, auxiliary_scale(sequences), compute_dtype, settings.seed)
    copy_last_layers(head, target.weights, target.config.num_layers)
    return Trainer(head, tables, sequences, settings, folder, read_more), tables


def _start(
    request: TrainingRequest, target: LlamaTarget, chat: ChatFormat, sequences: list[TrainingSequence], folder: Path
) -> tuple[Trainer, FrozenTables]:
    counts = count_tokens(sequences, target.config.vocab_size)
    vocabulary = choose_draft_vocabulary(
        counts, coverage=0.985, always=target.config.eos_token_ids, size=request.draft_vocab_size
    )
    mask_token_id = chat.unused_token_id(counts) if request.mask_token_id is None else request.mask_token_id
    return new_trainer(
        target,
        sequences,
        request.settings,
        folder,
        draft_to_target=vocabulary,
        mask_token_id=mask_token_id,
        num_layers=request.num_layers,
        compute_dtype=target.compute_dtype,
    )


def _export_and_walk(
    request: TrainingRequest,
    target: LlamaTarget,
    trainer: Trainer,
    tables: FrozenTables,
    held_out: list[TrainingSequence],
) -> Acceptance:
    import torch

    vocabulary = tables.draft_to_target_D.numpy()
    write_head(request.output_path, trainer.head, vocabulary, target.config, trainer.averaged_state())
    head, draft_to_target = read_head(request.output_path, torch.float32)
    exact = freeze_tables(target.embeddings_VH, target.head_VH, draft_to_target, torch.float32)
    return measure_acceptance(head, exact, held_out, draft_tokens=request.draft_tokens)


def _check_state(path: Path, *, is_resumed: bool) -> None:
    if is_resumed and not path.exists():
        raise UsageError(f"there is no state `{path}` to resume from", hint="leave --resume out to start a training")
    if path.exists() and not is_resumed:
        raise UsageError(
            f"`{path}` is the state of an earlier training", hint="continue it with --resume, or remove it"
        )
