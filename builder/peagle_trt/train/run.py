"""A whole training: questions in, a head's checkpoint out; the room's front door."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from peagle_trt.errors import CheckpointError, UsageError
from peagle_trt.train.begin import Report, begin
from peagle_trt.train.checks import check_lengths, check_mask_token, check_sequential
from peagle_trt.train.collect import CollectionPlan, collect_features
from peagle_trt.train.corpus import Question
from peagle_trt.train.curves import draw_curves
from peagle_trt.train.export import HeadExport
from peagle_trt.train.features import AnswerText, read_all_sequences, read_all_texts, refuse_bare_answers, verify_shards
from peagle_trt.train.placement import choose_device, usual_compute_dtype
from peagle_trt.train.prompting import ChatFormat, make_prompts, read_chat_format
from peagle_trt.train.question_files import read_question_file
from peagle_trt.train.request import TrainingReport, TrainingRequest
from peagle_trt.train.run_state import WORK_NAME
from peagle_trt.train.states import (
    FEATURES,
    ComputedStates,
    StoredStates,
    most_stored_tokens,
    token_bytes,
)
from peagle_trt.train.target import TorchTarget, read_torch_target
from peagle_trt.train.trainer import Watchers
from peagle_trt.train.warm_start import WarmStart, check_warm_request, read_warm_start
from peagle_trt.train.workers import Workers, join_workers

# Share of the answers kept out of training to measure on, and the most that are needed.
HELD_OUT_SHARE, MAX_HELD_OUT = 0.05, 32
# How far the decode loop answers them again at every evaluation.
EVALUATED_TOKENS = 64
SHORTEST_ANSWER = 8


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

    work = request.output_path / WORK_NAME
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
    trainer, tables = begin(request, target, chat, trained, states, work / "run", workers, report, warm)
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
