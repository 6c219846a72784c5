"""Stored answers to training rows: the EAGLE shift, the sampled mask slots, their attention masks and supervision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from peagle_trt.train.row_attention import SequenceRows
from peagle_trt.train.sampling import DropSettings, RowPlan, sample_rows

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

    from peagle_trt.train.features import AnswerText, TrainingSequence
    from peagle_trt.train.head import HeadRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One step's rows and what they should predict.

    Attributes:
        rows: The drafter's input.
        supervised_rows: Rows with a loss, [S] int64.
        depths: Their depths, [S] int64.
        anchors: Slots of their rollouts' bonus tokens, [S] int64.
        origins: Which of the sequences each belongs to, [S] int64.
        target_indices: Where in `target_normed_UH` each finds its target, [S] int64.
        target_normed_UH: The target's lm_head inputs, [U, H] float.
    """

    rows: HeadRows
    supervised_rows: Tensor
    depths: Tensor
    anchors: Tensor
    origins: Tensor
    target_indices: Tensor
    target_normed_UH: Tensor


def supervised_slots(sequence: AnswerText) -> NDArray[np.bool_]:
    """Slots that a drafter can meet at inference: those from the first generated token on, [L] bool.

    Slot i carries token i+1 and predicts token i+2; the last slot has no target.
    """
    num_slots = len(sequence.token_ids) - 2
    supervised: NDArray[np.bool_] = np.arange(num_slots) + 1 >= sequence.prompt_length
    return supervised


def supervised_rows(sequence: AnswerText, plan: RowPlan) -> NDArray[np.bool_]:
    """Rows of a plan that have a loss, [R] bool; those that reach beyond the text have none."""
    slots = supervised_slots(sequence)
    held = np.minimum(plan.positions, len(slots) - 1)
    has_loss: NDArray[np.bool_] = (plan.positions < len(slots)) & slots[held]
    return has_loss


def sample_plans(
    sequences: Sequence[AnswerText], settings: DropSettings, generator: np.random.Generator
) -> list[RowPlan]:
    """Freshly drawn mask slots for the sequences of one step."""
    return [
        sample_rows(len(sequence.token_ids) - 2, supervised_slots(sequence), settings, generator)
        for sequence in sequences
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Rows of one sequence that run together.

    Attributes:
        sequence: Tokens and hidden states.
        plan: The rows.
        has_loss: Which of them this piece answers for, [R] bool; the others are context for them.
        num_prefix: Context slots whose keys and values are held already.
        origin: The sequence's place in its step.
    """

    sequence: TrainingSequence
    plan: RowPlan
    has_loss: NDArray[np.bool_]
    num_prefix: int = 0
    origin: int = 0


def pack_rows(
    sequences: Sequence[TrainingSequence],
    plans: Sequence[RowPlan],
    mask_token_id: int,
    device: torch.device | str = "cpu",
) -> Batch:
    """Lay the rows of whole sequences one after another, with a loss wherever the slot is supervised."""
    pieces = [
        Piece(sequence=sequence, plan=plan, has_loss=supervised_rows(sequence, plan), origin=place)
        for place, (sequence, plan) in enumerate(zip(sequences, plans, strict=True))
    ]
    return pack_pieces(pieces, mask_token_id, device)


def pack_pieces(pieces: Sequence[Piece], mask_token_id: int, device: torch.device | str = "cpu") -> Batch:
    """Lay the rows of pieces one after another.

    Args:
        pieces: Of one sequence each.
        mask_token_id: Token of mask rows.
        device: Where the batch goes; hidden states may be there already, token ids are on the host.

    Returns:
        The drafter's input and its supervision.

    Source: EAGLE-3's shift; slot i pairs token i+1 with the hidden state of token i.
    """
    import torch

    from peagle_trt.train.head import HeadRows

    tokens, hidden, supervised, indices, normed = [], [], [], [], []
    num_rows, num_targets = 0, 0
    for piece in pieces:
        sequence, plan = piece.sequence, piece.plan
        # Mask rows may reach beyond the text; what stands there is replaced, so any valid index will do.
        held = torch.from_numpy(plan.positions).clamp(max=len(sequence.token_ids) - 2)
        shifted = sequence.token_ids.long()[held + 1]
        tokens.append(shifted.masked_fill_(torch.from_numpy(plan.depths > 0), mask_token_id))
        # Half as wide on its way over, where it comes out of a store.
        hidden.append(sequence.auxiliary_NA[held.to(sequence.auxiliary_NA.device)].to(device).float())
        chosen = np.flatnonzero(piece.has_loss)
        supervised.append(chosen + num_rows)
        # Slot i's target is what lm_head reads at token i+1; only answer positions are kept.
        first = max(sequence.prompt_length - 1, 0)
        indices.append(plan.positions[chosen] - first + num_targets)
        normed.append(sequence.normed_NH[first + 1 :].to(device).float())
        num_rows, num_targets = num_rows + len(plan.depths), num_targets + len(normed[-1])
    rows = HeadRows(
        token_ids_R=torch.cat(tokens).to(device),
        auxiliary_RA=torch.cat(hidden),
        is_mask_R=torch.from_numpy(np.concatenate([piece.plan.depths > 0 for piece in pieces])).to(device),
        positions_R=torch.from_numpy(np.concatenate([piece.plan.positions for piece in pieces])).to(device),
        layouts=[_layout(piece) for piece in pieces],
    )
    places = np.concatenate([np.full(len(s), piece.origin) for s, piece in zip(supervised, pieces, strict=True)])
    depths = np.concatenate([piece.plan.depths[piece.has_loss] for piece in pieces])
    anchors = np.concatenate([piece.plan.anchors[piece.has_loss] for piece in pieces])
    return Batch(
        rows=rows,
        supervised_rows=torch.from_numpy(np.concatenate(supervised)).to(device),
        depths=torch.from_numpy(depths).to(device),
        anchors=torch.from_numpy(anchors).to(device),
        origins=torch.from_numpy(places).to(device),
        target_indices=torch.from_numpy(np.concatenate(indices)).to(device),
        target_normed_UH=torch.cat(normed),
    )


def _layout(piece: Piece) -> SequenceRows:
    num_context = piece.plan.num_context
    return SequenceRows(
        num_prefix=piece.num_prefix,
        num_context=num_context,
        anchors=piece.plan.anchors[num_context:],
        depths=piece.plan.depths[num_context:],
    )


def batch_orders(lengths: Sequence[int], *, tokens_per_step: int, seed: int, epoch: int) -> Iterator[list[int]]:
    """The sequences of each step of an epoch, in an order that depends on seed and epoch alone.

    What does not fill a step is left for the next epoch; where all sequences together do not, they are one step.

    Args:
        lengths: Tokens of each sequence.
        tokens_per_step: A step ends once it holds this many.
        seed: Of the run.
        epoch: Pass over the data, from zero.
    """
    order = np.random.default_rng((seed, epoch)).permutation(len(lengths))
    chosen: list[int] = []
    total, needed = 0, min(tokens_per_step, sum(lengths))
    for index in order.tolist():
        chosen.append(index)
        total += lengths[index]
        if total >= needed:
            yield chosen
            chosen, total = [], 0
