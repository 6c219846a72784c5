"""Gradients of one step, in as many passes as a limit of rows asks for; the result does not depend on the limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from peagle_trt.train.batches import Batch, Piece, pack_pieces, supervised_rows
from peagle_trt.train.held_context import HeldContext, append
from peagle_trt.train.partition import context_pieces, keeps_context, paper_segments, rollout_pieces
from peagle_trt.train.sampling import RowPlan

if TYPE_CHECKING:
    from torch import Tensor

    from peagle_trt.train.acceptance import FrozenTables
    from peagle_trt.train.features import AnswerText, TrainingSequence
    from peagle_trt.train.head import PeagleHead
    from peagle_trt.train.loss import LossParts
    from peagle_trt.train.row_attention import KeysValues


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """How a step is cut.

    Attributes:
        method: One of `partition.METHODS`.
        max_rows: Most rows of a pass; longer sequences are cut, shorter ones share passes. None cuts nothing.
    """

    method: str = "cached"
    max_rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """What a row's loss is.

    Attributes:
        objective: One of `objectives.OBJECTIVES`.
        target_temperature: Divides the target's logits. Below one it asks for the likeliest token rather than for the
            whole distribution, which is what greedy serving accepts.
        depth_decay: Weight of depth d relative to depth d-1.
        refused_weight: Weight of a row behind a draft that does not agree with the target, relative to the others.
    """

    objective: str = "kl"
    target_temperature: float = 1.0
    depth_decay: float = 1.0
    refused_weight: float = 1.0


@dataclass(slots=True, kw_only=True)
class StepSums:
    """What the passes of a step add up to.

    Attributes:
        loss: Of the step.
        agreements: Rows of each depth where drafter and target prefer the same token, [K].
        counts: Rows of each depth, [K].
        broken_origins: Sequences with a loss that is no number, by their place in the step.
        num_rows: Rows that ran as queries with a backward pass.
        peak_rows: Most of them whose graph was alive at once.
        live_rows: Rows whose graph waits for the passes that follow.
    """

    loss: float
    agreements: Tensor
    counts: Tensor
    broken_origins: set[int]
    num_rows: int = 0
    peak_rows: int = 0
    live_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A step in progress.

    Attributes:
        head: In training.
        tables: The target's.
        settings: The loss.
        total_weight: Divides the loss.
        sums: What the passes so far add up to.
        first_agrees: By sequence, whether drafter and target prefer the same token at its context slots, as far as
            passes have come; [C] bool.
    """

    head: PeagleHead
    tables: FrozenTables
    settings: LossSettings
    total_weight: float
    sums: StepSums
    first_agrees: dict[int, Tensor] = field(default_factory=dict)


def accumulate_gradients(
    head: PeagleHead,
    tables: FrozenTables,
    sequences: Sequence[TrainingSequence],
    plans: Sequence[RowPlan],
    *,
    settings: LossSettings,
    partition: Partition,
    total_weight: float | None = None,
    num_depths: int | None = None,
) -> StepSums:
    """Add the gradients of the mean loss of a step to the head's parameters.

    Args:
        head: Its `.grad` fields are added to.
        tables: The target's frozen tables.
        sequences: Of the step.
        plans: The rows of each.
        settings: The loss.
        partition: How the step is cut; changes rounding only.
        total_weight: Divides the loss; None takes the weight of these sequences. Workers that share a step pass the
            weight of all of them, and their losses and gradients add up.
        num_depths: Depths to count; None takes as many as there are.

    Returns:
        The loss and what is worth watching.
    """
    import torch

    weight = step_weight(sequences, plans, settings.depth_decay) if total_weight is None else total_weight
    depths = num_depths or 1 + max((int(plan.depths.max(initial=0)) for plan in plans), default=0)
    sums = StepSums(loss=0.0, agreements=torch.zeros(depths), counts=torch.zeros(depths), broken_origins=set())
    step = _Step(head=head, tables=tables, settings=settings, total_weight=weight, sums=sums)
    whole = [
        Piece(sequence=sequence, plan=plan, has_loss=supervised_rows(sequence, plan), origin=place)
        for place, (sequence, plan) in enumerate(zip(sequences, plans, strict=True))
    ]
    run_long = {"cached": _run_cached, "recomputed": _run_recomputed}[partition.method]
    for group in _groups(whole, partition.max_rows):
        if partition.max_rows is None or sum(len(piece.plan.depths) for piece in group) <= partition.max_rows:
            _backward(step, [_losses(step, group)])
        else:
            run_long(step, group[0], partition.max_rows)
    return sums


def step_weight(sequences: Sequence[AnswerText], plans: Sequence[RowPlan], depth_decay: float) -> float:
    """Summed weight of all supervised rows of a step."""
    return sum(
        float((depth_decay ** plan.depths[supervised_rows(sequence, plan)].astype(np.float64)).sum())
        for sequence, plan in zip(sequences, plans, strict=True)
    )


def _groups(pieces: Sequence[Piece], max_rows: int | None) -> Iterator[list[Piece]]:
    """Sequences that share a pass, in order; one that is too long stands alone."""
    group: list[Piece] = []
    num_rows = 0
    for piece in pieces:
        if group and max_rows is not None and num_rows + len(piece.plan.depths) > max_rows:
            yield group
            group, num_rows = [], 0
        group.append(piece)
        num_rows += len(piece.plan.depths)
    if group:
        yield group


def _run_recomputed(step: _Step, whole: Piece, max_rows: int) -> None:
    num_segments = -(-len(whole.plan.depths) // max_rows)
    for segment in paper_segments(whole.plan, num_segments):
        has_loss = whole.has_loss[segment.rows] & segment.is_owned
        piece = Piece(
            sequence=whole.sequence, plan=whole.plan.take(segment.rows), has_loss=has_loss, origin=whole.origin
        )
        _backward(step, [_losses(step, [piece])])


def _run_cached(step: _Step, whole: Piece, max_rows: int) -> None:
    """The rollouts on top of the context's keys and values, then the context.

    A context slot's keys and values gather gradients from every later row, so its backward pass comes after theirs.
    """
    max_rows = max(max_rows, int(whole.plan.depths.max(initial=1)))
    if keeps_context(whole.plan, max_rows):
        _run_on_live_context(step, whole, max_rows)
    else:
        _run_on_held_context(step, whole, max_rows)


def _run_on_live_context(step: _Step, whole: Piece, max_rows: int) -> None:
    """The context's graph waits for the rollouts; nothing runs twice."""
    num_context = whole.plan.num_context
    losses, written = _forward_context(step, _part(whole, whole.plan.take(slice(num_context)), num_prefix=0), None)
    held = HeldContext(written)
    step.sums.live_rows = num_context
    _run_rollouts(step, whole, held, max_rows - num_context)
    step.sums.live_rows = 0
    _backward(step, losses, written, held.gradients(slice(num_context)))


def _run_on_held_context(step: _Step, whole: Piece, max_rows: int) -> None:
    """Keys and values first, without a graph; pieces of the context run again from the end, each for its backward."""
    context = [_part(whole, plan, num_prefix=int(plan.anchors[0])) for plan in context_pieces(whole.plan, max_rows)]
    held = HeldContext(_context_keys_values(step, context))
    if step.settings.refused_weight != 1.0:
        _survey_first(step, context, held)
    _run_rollouts(step, whole, held, max_rows)
    for piece in reversed(context):
        prefix = held.leaves(piece.num_prefix) if piece.num_prefix else None
        losses, written = _forward_context(step, piece, prefix)
        _backward(
            step, losses, written, held.gradients(slice(piece.num_prefix, piece.num_prefix + piece.plan.num_context))
        )
        if prefix is not None:
            held.collect(prefix)


def _survey_first(step: _Step, context: Sequence[Piece], held: HeldContext) -> None:
    """Run the context's slots without a graph, for what the rollouts' weights need to know of them."""
    import torch

    with torch.no_grad():
        for piece in context:
            if piece.has_loss.any():
                batch = pack_pieces([piece], step.head.config.mask_token_id, step.head.device)
                prefix = held.leaves(piece.num_prefix) if piece.num_prefix else None
                hidden_RH = step.head(batch.rows, step.tables.embeddings_VH, prefix)
                _remember_first(step, [piece], batch, _distill(step, batch, hidden_RH).agrees_S)


def _run_rollouts(step: _Step, whole: Piece, held: HeldContext, max_rows: int) -> None:
    for plan in rollout_pieces(whole.plan, max_rows):
        num_prefix = int(plan.anchors[-1]) + 1
        prefix = held.leaves(num_prefix)
        _backward(step, [_losses(step, [_part(whole, plan, num_prefix=num_prefix)], prefix)])
        held.collect(prefix)


def _forward_context(
    step: _Step, piece: Piece, prefix: list[KeysValues] | None
) -> tuple[list[Tensor], list[KeysValues]]:
    """Losses, keys and values of context slots; those of a prompt, which have no loss, give keys and values only."""
    written: list[KeysValues] = []
    if piece.has_loss.any():
        return [_losses(step, [piece], prefix, written)], written
    batch = pack_pieces([piece], step.head.config.mask_token_id, step.head.device)
    _count_rows(step.sums, batch)
    return [], step.head.keys_values(batch.rows, step.tables.embeddings_VH, prefix)


def _part(whole: Piece, plan: RowPlan, *, num_prefix: int) -> Piece:
    """A piece that answers for all of its rows."""
    return Piece(
        sequence=whole.sequence,
        plan=plan,
        has_loss=supervised_rows(whole.sequence, plan),
        num_prefix=num_prefix,
        origin=whole.origin,
    )


def _context_keys_values(step: _Step, pieces: Sequence[Piece]) -> list[KeysValues]:
    import torch

    layers: list[KeysValues] | None = None
    with torch.no_grad():
        for piece in pieces:
            rows = pack_pieces([piece], step.head.config.mask_token_id, step.head.device).rows
            layers = append(layers, step.head.keys_values(rows, step.tables.embeddings_VH, layers))
    assert layers is not None, "a sequence has context"
    return layers


def _losses(
    step: _Step,
    pieces: Sequence[Piece],
    prefix: Sequence[KeysValues] | None = None,
    written: list[KeysValues] | None = None,
) -> Tensor:
    """The pieces' part of the step's loss, with its graph; counted in the step's sums."""
    import torch

    from peagle_trt.train.survival import survival_weights

    batch = pack_pieces(pieces, step.head.config.mask_token_id, step.head.device)
    parts = _distill(step, batch, step.head(batch.rows, step.tables.embeddings_VH, prefix, written))
    weights = torch.pow(step.settings.depth_decay, batch.depths)
    if step.settings.refused_weight != 1.0:
        _remember_first(step, pieces, batch, parts.agrees_S)
        weights = weights * survival_weights(
            batch.origins,
            batch.anchors,
            batch.depths,
            parts.agrees_S,
            step.first_agrees,
            step.settings.refused_weight,
        )
    loss = (parts.loss_S * (weights / step.total_weight)).sum()
    _count(step.sums, batch, parts)
    step.sums.loss += float(loss.detach())
    return loss


def _distill(step: _Step, batch: Batch, hidden_RH: Tensor) -> LossParts:
    from peagle_trt.train.loss import distillation_loss

    return distillation_loss(
        hidden_RH[batch.supervised_rows],
        batch.target_normed_UH / step.settings.target_temperature,
        batch.target_indices,
        step.tables.head_DH,
        step.settings.objective,
    )


def _remember_first(step: _Step, pieces: Sequence[Piece], batch: Batch, agrees_S: Tensor) -> None:
    """Note at which context slots of a pass the drafter agrees, for the rollouts behind them."""
    import torch

    for piece in pieces:
        num_slots = len(piece.sequence.token_ids) - 2
        known = step.first_agrees.setdefault(
            piece.origin, torch.zeros(num_slots, dtype=torch.bool, device=agrees_S.device)
        )
        rows = (batch.origins == piece.origin) & (batch.depths == 0)
        known[batch.anchors[rows]] = agrees_S[rows]


def _backward(
    step: _Step,
    losses: list[Tensor],
    written: Sequence[KeysValues] = (),
    owed: Sequence[tuple[Tensor, Tensor]] = (),
) -> None:
    """Backward from losses, and from keys and values into which later rows' gradients flow."""
    import torch

    if step.sums.broken_origins:
        return
    tensors = [*losses, *(tensor for layer in written for tensor in (layer.keys, layer.values))]
    gradients = [*(None for _ in losses), *(gradient for pair in owed for gradient in pair)]
    torch.autograd.backward(tensors, gradients)


def _count(sums: StepSums, batch: Batch, parts: LossParts) -> None:
    import torch

    num_depths = len(sums.counts)
    sums.agreements += torch.bincount(batch.depths, weights=parts.agrees_S.float(), minlength=num_depths).cpu()
    sums.counts += torch.bincount(batch.depths, minlength=num_depths).cpu()
    sums.broken_origins |= set(batch.origins[~parts.loss_S.detach().isfinite()].tolist())
    _count_rows(sums, batch)


def _count_rows(sums: StepSums, batch: Batch) -> None:
    num_rows = len(batch.rows.token_ids_R)
    sums.num_rows += num_rows
    sums.peak_rows = max(sums.peak_rows, num_rows + sums.live_rows)
