"""The head and the trainer that a run begins with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from peagle_trt.files import sha256_of
from peagle_trt.spec.drafter import NO_MASK_TOKEN
from peagle_trt.train.acceptance import FrozenTables, freeze_tables
from peagle_trt.train.checks import check_mask_token
from peagle_trt.train.features import AnswerText
from peagle_trt.train.fitting import fit_partition
from peagle_trt.train.prompting import ChatFormat
from peagle_trt.train.request import TrainingRequest
from peagle_trt.train.settings import TrainingSettings
from peagle_trt.train.start import (
    auxiliary_scale,
    copy_last_layers,
    count_tokens,
    drafter_config,
    feed_forward_width,
    seeded_head,
)
from peagle_trt.train.states import StateSource, StoredStates, complete_each
from peagle_trt.train.target import TorchTarget
from peagle_trt.train.trainer import Trainer
from peagle_trt.train.vocabulary import choose_draft_vocabulary
from peagle_trt.train.warm_start import WarmStart, warm_config, warm_head
from peagle_trt.train.workers import Workers

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

USUAL_LAYERS = 2

Report = Callable[[str], None]


def begin(
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
    """The trainer that a request asks for, its steps cut as memory asks, and the target's tables."""
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
            "feed-forward width": request.intermediate_size
            or (feed_forward_width(target.config) if warm is None else warm.config.intermediate_size),
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
