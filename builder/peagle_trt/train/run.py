"""A whole training: questions in, a head's checkpoint out; the room's front door."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from peagle_trt.errors import CheckpointError, UsageError
from peagle_trt.files import sha256_of
from peagle_trt.spec.drafter import NO_MASK_TOKEN, Method
from peagle_trt.train.acceptance import Acceptance, FrozenTables, freeze_tables
from peagle_trt.train.checks import check_lengths, check_mask_token, check_sequential
from peagle_trt.train.collect import CollectionPlan, collect_features
from peagle_trt.train.corpus import Question
from peagle_trt.train.curves import draw_curves
from peagle_trt.train.export import HeadExport
from peagle_trt.train.features import AnswerText, read_all_sequences, read_all_texts, refuse_bare_answers, verify_shards
from peagle_trt.train.fitting import MemoryRequest, fit_partition
from peagle_trt.train.placement import choose_device, usual_compute_dtype
from peagle_trt.train.prompting import ChatFormat, make_prompts, read_chat_format
from peagle_trt.train.question_files import read_question_file
from peagle_trt.train.settings import TrainingSettings
from peagle_trt.train.start import auxiliary_scale, copy_last_layers, count_tokens, drafter_config, seeded_head
from peagle_trt.train.states import (
    FEATURES,
    ComputedStates,
    Features,
    StateSource,
    StoredStates,
    complete_each,
    most_stored_tokens,
    token_bytes,
)
from peagle_trt.train.target import TorchTarget, read_torch_target
from peagle_trt.train.trainer import Trainer, Watchers
from peagle_trt.train.vocabulary import choose_draft_vocabulary
from peagle_trt.train.warm_start import WarmStart, check_warm_request, read_warm_start, warm_config, warm_head
from peagle_trt.train.workers import Workers, join_workers

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

# Share of the answers kept out of training to measure on, and the most that are needed.
HELD_OUT_SHARE, MAX_HELD_OUT = 0.05, 32
# How far the decode loop answers them again at every evaluation.
EVALUATED_TOKENS = 64
SHORTEST_ANSWER = 8
USUAL_LAYERS = 2

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRequest:
    """What to train.

    Attributes:
        target_path: Checkpoint folder or GGUF file.
        questions_path: JSON lines; see `question_files`.
        output_path: Takes the head, and under `work` everything that a resumed run needs.
        method: How the head is to draft.
        start_path: Folder of a head to begin with, or None for the target's last layers.
        num_layers: Layers of the head; None is 2, or as many as the head to begin with has.
        intermediate_size: Width of its feed-forward blocks; None is the target's, or the one of the head to begin with.
        auxiliary_layers: Target layers whose input it reads; None is (2, n//2, n-3), or what the head to begin with
            reads.
        draft_vocab_size: Rows of its lm_head; None covers 98.5 % of the answers, or is the vocabulary of the head to
            begin with.
        mask_token_id: A token of the target that no text holds; None looks for one, unless the head is sequential.
        max_prompt_tokens: Questions that are longer are left out.
        max_new_tokens: Longest answer to train on.
        draft_tokens: K to measure with.
        features: Whether hidden states are stored with the answers or computed for every step, one of `FEATURES`.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        compute_dtype: `float32`, or `bfloat16` where the processor has it; None is `usual_compute_dtype`.
        is_resumed: Continue from the last state.
        memory: How steps are cut.
        settings: The loop's settings; their `partition` is replaced by what `memory` asks for.
    """

    target_path: Path
    questions_path: Path
    output_path: Path
    method: Method = "p-eagle"
    start_path: Path | None = None
    num_layers: int | None = None
    intermediate_size: int | None = None
    auxiliary_layers: tuple[int, ...] | None = None
    draft_vocab_size: int | None = None
    mask_token_id: int | None = None
    max_prompt_tokens: int = 256
    max_new_tokens: int = 224
    draft_tokens: int = 5
    features: Features = "cached"
    device: str = "auto"
    compute_dtype: str | None = None
    is_resumed: bool = False
    memory: MemoryRequest = field(default_factory=MemoryRequest)
    settings: TrainingSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingReport:
    """What came out.

    Attributes:
        num_answers: Answers trained on.
        num_answer_tokens: Their generated tokens.
        draft_vocab_size: Rows of the head's lm_head.
        mask_token_id: Token of its mask slots; None of a head without any.
        last_loss: Mean loss of the last 20 steps of this call; None when it took none.
        num_steps: Steps of the whole run.
        best_step: Step of the head that was kept.
        decoded_acceptance_length: Its acceptance length in the decode loop, on held-out prompts.
        held_out: Walk over held-out answers.
    """

    num_answers: int
    num_answer_tokens: int
    draft_vocab_size: int
    mask_token_id: int | None
    last_loss: float | None
    num_steps: int
    best_step: int
    decoded_acceptance_length: float
    held_out: Acceptance


def train_head(
    request: TrainingRequest, *, report: Report, on_step: Callable[[int, int, float], None] | None = None
) -> TrainingReport:
    """Let the target answer, train a head on the answers, write it, measure it.

    Args:
        request: Paths and settings.
        report: Takes a line at a time about what is going on.
        on_step: Told of each step: steps taken, steps of the schedule, loss.

    Returns:
        Counts, loss and acceptance length.

    Raises:
        UsageError: There is a state and `is_resumed` is not set, or the other way round; the limits do not fit.
        CheckpointError: The target does not fit, or its answers are too few.
        PeagleError: A loss is no number.
        MachineError: The disk is full.
    """
    with join_workers() as workers:
        return _train(request, workers, report if workers.is_first else lambda line: None, on_step)


def _train(
    request: TrainingRequest, workers: Workers, report: Report, on_step: Callable[[int, int, float], None] | None
) -> TrainingReport:
    import torch

    work = request.output_path / "work"
    _check_state(work / "run/state.pt", is_resumed=request.is_resumed)
    request.memory.check()
    device = choose_device(request.device, workers.rank)
    report(f"training on `{device}`")
    if request.method == "eagle3":
        check_sequential(request.memory, request.mask_token_id)
    warm = None if request.start_path is None else _read_start(request, request.start_path)
    auxiliary_layers = request.auxiliary_layers if warm is None else warm.config.aux_layer_ids
    compute_dtype = getattr(torch, request.compute_dtype or usual_compute_dtype(device))
    target = read_torch_target(request.target_path, compute_dtype, auxiliary_layers, device=device)
    if request.mask_token_id is not None:
        check_mask_token(request.mask_token_id, (), target.config.vocab_size)
    chat = read_chat_format(request.target_path, target.config.eos_token_ids[0])
    answers = _collect(request, target, chat, workers, report)
    num_held_out = min(MAX_HELD_OUT, int(len(answers) * HELD_OUT_SHARE) + 1)
    if len(answers) <= num_held_out:
        raise CheckpointError(f"the target gave only `{len(answers)}` answers of {SHORTEST_ANSWER} tokens or more")
    held_out, trained = answers[:num_held_out], answers[num_held_out:]
    states = ComputedStates(target) if request.features == "computed" else StoredStates()
    trainer, tables = _start(request, target, chat, trained, states, work / "run", workers, report, warm)
    if request.is_resumed:
        trainer.restore()
        report(f"continuing after step {trainer.step}")
    export = HeadExport(
        folder=request.output_path,
        target=target,
        tables=tables,
        held_out=held_out,
        states=states,
        draft_tokens=request.draft_tokens,
        max_new_tokens=min(EVALUATED_TOKENS, request.max_new_tokens),
        report=report,
    )
    watchers = Watchers(
        on_step=_progress(request, on_step if workers.is_first else None),
        evaluate=export.evaluate,
        on_best=export.publish,
    )
    losses = trainer.run(watchers=watchers)[-20:]
    workers.wait()
    if workers.is_first:
        draw_curves(work / "run", work / "curves.svg")
    if trainer.is_stopped and trainer.step < request.settings.optimizer.total_steps:
        report(f"stopped after step {trainer.step}: acceptance has not grown for {request.settings.patience} rounds")
    assert trainer.best is not None, "a run ends with an evaluation"
    return TrainingReport(
        num_answers=len(trained),
        num_answer_tokens=sum(len(s.token_ids) - s.prompt_length for s in trained),
        draft_vocab_size=trainer.head.config.draft_vocab_size,
        mask_token_id=trainer.head.config.mask_token_id if trainer.head.config.is_parallel else None,
        last_loss=sum(losses) / len(losses) if losses else None,
        num_steps=trainer.step,
        best_step=trainer.best[1],
        decoded_acceptance_length=trainer.best[0],
        held_out=export.walk(),
    )


def new_trainer(
    target: TorchTarget,
    sequences: Sequence[AnswerText],
    settings: TrainingSettings,
    folder: Path,
    *,
    states: StateSource | None = None,
    draft_to_target: NDArray[np.int64],
    mask_token_id: int,
    num_layers: int | None = None,
    intermediate_size: int | None = None,
    compute_dtype: torch.dtype,
    read_more: Callable[[], Sequence[AnswerText]] | None = None,
    workers: Workers | None = None,
    facts: Mapping[str, object] | None = None,
    warm: WarmStart | None = None,
    report: Report = lambda line: None,
) -> tuple[Trainer, FrozenTables]:
    """A head for these answers, started from the target's last layers or from an earlier head, and its trainer."""
    num_depths = settings.drop.num_depths
    tables = freeze_tables(target.embeddings_VH, target.head_VH, draft_to_target, compute_dtype)
    states = states or StoredStates()
    scale_A = auxiliary_scale(complete_each(states, sequences))
    if warm is not None:
        positions = target.config.max_positions
        config = warm_config(
            warm,
            num_layers=num_layers,
            intermediate_size=intermediate_size,
            mask_token_id=mask_token_id,
            num_depths=num_depths,
            max_positions=positions,
        )
        head = warm_head(warm, config, scale_A, compute_dtype, seed=settings.seed, report=report)
    else:
        config = drafter_config(
            target.config,
            aux_layer_ids=target.auxiliary_layers,
            num_layers=num_layers or USUAL_LAYERS,
            intermediate_size=intermediate_size,
            draft_vocab_size=len(draft_to_target),
            mask_token_id=mask_token_id,
            num_depths=num_depths,
        )
        head = seeded_head(config, scale_A, compute_dtype, settings.seed)
        copy_last_layers(head, target.weights, target.config)
    head = head.to(target.device)
    trainer = Trainer(head, tables, sequences, settings, folder, read_more, states=states, workers=workers, facts=facts)
    return trainer, tables


def _collect(
    request: TrainingRequest, target: TorchTarget, chat: ChatFormat, workers: Workers, report: Report
) -> Sequence[AnswerText]:
    """The target's answers, from disk where an earlier run stored them."""
    questions = read_question_file(request.questions_path)
    check_lengths(
        chat,
        questions,
        max_prompt_tokens=request.max_prompt_tokens,
        max_new_tokens=request.max_new_tokens,
        max_positions=target.config.max_positions,
        report=report,
    )
    folder = request.output_path / "work/features"
    _report_sizes(request, target, chat, questions, report)
    if request.features == "cached":
        refuse_bare_answers(folder)
    report(f"the target answers {len(questions)} questions")
    plan = CollectionPlan(
        features=request.features,
        max_prompt_tokens=request.max_prompt_tokens,
        max_new_tokens=request.max_new_tokens,
        worker=workers.rank,
        num_workers=workers.count,
    )
    collect_features(target, chat, questions, folder=folder, plan=plan)
    workers.wait()
    verify_shards(folder)
    found: Sequence[AnswerText] = read_all_sequences(folder) if request.features == "cached" else read_all_texts(folder)
    return [answer for answer in found if len(answer.token_ids) - answer.prompt_length >= SHORTEST_ANSWER]


def _report_sizes(
    request: TrainingRequest, target: TorchTarget, chat: ChatFormat, questions: Sequence[Question], report: Report
) -> None:
    limits = {"max_prompt_tokens": request.max_prompt_tokens, "max_new_tokens": request.max_new_tokens}
    num_tokens = most_stored_tokens(list(make_prompts(questions, chat, **limits)))
    sizes = {"hidden_size": target.config.hidden_size, "num_auxiliary": len(target.auxiliary_layers)}
    report(f"on disk, at most {num_tokens:,} tokens of answers:")
    for features, meaning in FEATURES.items():
        each = token_bytes(features, **sizes)
        mark = "*" if features == request.features else " "
        report(f" {mark} {features}: {each:,} bytes a token, {num_tokens * each / 2**20:,.1f} MiB; {meaning}")


def _read_start(request: TrainingRequest, path: Path) -> WarmStart:
    warm = read_warm_start(path, request.target_path)
    check_warm_request(
        warm,
        auxiliary_layers=request.auxiliary_layers,
        num_layers=request.num_layers,
        intermediate_size=request.intermediate_size,
        draft_vocab_size=request.draft_vocab_size,
        mask_token_id=request.mask_token_id,
    )
    return warm


def _start(
    request: TrainingRequest,
    target: TorchTarget,
    chat: ChatFormat,
    sequences: Sequence[AnswerText],
    states: StateSource,
    folder: Path,
    workers: Workers,
    report: Report,
    warm: WarmStart | None,
) -> tuple[Trainer, FrozenTables]:
    counts = count_tokens(sequences, target.config.vocab_size)
    vocabulary = (
        choose_draft_vocabulary(
            counts, coverage=0.985, always=target.config.eos_token_ids, size=request.draft_vocab_size
        )
        if warm is None
        else warm.draft_to_target
    )
    mask_token_id = NO_MASK_TOKEN
    if request.method == "p-eagle":
        mask_token_id = _choose_mask_token(request, chat, counts, warm)
        check_mask_token(mask_token_id, sequences, target.config.vocab_size)
    trainer, tables = new_trainer(
        target,
        sequences,
        request.settings,
        folder,
        draft_to_target=vocabulary,
        mask_token_id=mask_token_id,
        num_layers=request.num_layers,
        intermediate_size=request.intermediate_size,
        compute_dtype=target.compute_dtype,
        states=states,
        workers=workers,
        warm=warm,
        report=report,
        facts={
            **request.settings.facts(),
            "method": request.method,
            "start (sha256)": None if warm is None else warm.digests(),
            "layers": request.num_layers or (USUAL_LAYERS if warm is None else warm.config.num_layers),
            "width of feed-forward blocks": request.intermediate_size,
            "auxiliary layers": target.auxiliary_layers,
            "draft vocabulary": len(vocabulary),
            "mask token": mask_token_id,
            "type of products": str(target.compute_dtype).removeprefix("torch."),
            "features": request.features,
            "number of answers": len(sequences),
            "questions (sha256)": sha256_of(request.questions_path),
        },
    )
    if request.method == "p-eagle":
        partition = fit_partition(trainer.head, tables, sequences, request.settings, request.memory, report, states)
        trainer.settings = replace(request.settings, partition=partition)
    return trainer, tables


def _choose_mask_token(
    request: TrainingRequest, chat: ChatFormat, counts: NDArray[np.int64], warm: WarmStart | None
) -> int:
    if request.mask_token_id is not None:
        return request.mask_token_id
    if warm is not None and warm.config.is_parallel:
        return warm.config.mask_token_id
    return chat.unused_token_id(counts)


def _progress(
    request: TrainingRequest, on_step: Callable[[int, int, float], None] | None
) -> Callable[[int, float], None] | None:
    if on_step is None:
        return None
    total = request.settings.optimizer.total_steps
    return lambda step, loss: on_step(step, total, loss)


def _check_state(path: Path, *, is_resumed: bool) -> None:
    if is_resumed and not path.exists():
        raise UsageError(f"there is no state `{path}` to resume from", hint="leave --resume out to start a training")
    if path.exists() and not is_resumed:
        raise UsageError(
            f"`{path}` is the state of an earlier training", hint="continue it with --resume, or remove it"
        )
