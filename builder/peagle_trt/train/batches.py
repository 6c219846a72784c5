"""Stored answers to training rows: the EAGLE shift, the sampled mask slots, their attention masks and supervision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from peagle_trt.train.sampling import DropSettings, RowPlan, sample_rows, visible_rows

if TYPE_CHECKING:
    from torch import Tensor

    from peagle_trt.train.features import TrainingSequence
    from peagle_trt.train.head import HeadRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One step's rows and what they should predict.

    Attributes:
        rows: The drafter's input.
        supervised_rows: Rows with a loss, [S] int64.
        depths: Their depths, [S] int64.
        target_indices: Where in `target_normed_UH` each finds its target, [S] int64.
        target_normed_UH: The target's lm_head inputs, [U, H] float.
    """

    rows: HeadRows
    supervised_rows: Tensor
    depths: Tensor
    target_indices: Tensor
    target_normed_UH: Tensor


def supervised_slots(sequence: TrainingSequence) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Slots that a drafter can meet at inference: those from the first generated token on, [L] bool.

    Slot i carries token i+1 and predicts token i+2; the last slot has no target.
    """
    num_slots = len(sequence.token_ids) - 2
    return np.arange(num_slots) + 1 >= sequence.prompt_length


def make_batch(
    sequences: Sequence[TrainingSequence], settings: DropSettings, mask_token_id: int, generator: np.random.Generator
) -> Batch:
    """Pack sequences of one step with freshly drawn mask slots."""
    plans = [
        sample_rows(len(sequence.token_ids) - 2, supervised_slots(sequence), settings, generator)
        for sequence in sequences
    ]
    return pack_rows(sequences, plans, mask_token_id)


def pack_rows(sequences: Sequence[TrainingSequence], plans: Sequence[RowPlan], mask_token_id: int) -> Batch:
    """Lay the rows of all sequences one after another.

    Args:
        sequences: Tokens and hidden states.
        plans: The rows of each.
        mask_token_id: Token of mask rows.

    Returns:
        Rows with a loss wherever the slot is supervised.

    Source: EAGLE-3's shift; slot i pairs token i+1 with the hidden state of token i.
    """
    import torch

    from peagle_trt.train.head import HeadRows

    tokens, hidden, supervised, depths, indices, normed, masks = [], [], [], [], [], [], []
    num_rows, num_targets = 0, 0
    for sequence, plan in zip(sequences, plans, strict=True):
        positions = torch.from_numpy(plan.positions)
        is_mask = torch.from_numpy(plan.depths > 0)
        # Mask rows may reach beyond the text; what stands there is replaced, so any valid index will do.
        held = positions.clamp(max=len(sequence.token_ids) - 2)
        shifted = sequence.token_ids.long()[held + 1]
        tokens.append(shifted.masked_fill_(is_mask, mask_token_id))
        hidden.append(sequence.auxiliary_NA[held].float())
        slots = supervised_slots(sequence)
        has_loss = np.flatnonzero((plan.positions < len(slots)) & slots[np.minimum(plan.positions, len(slots) - 1)])
        supervised.append(has_loss + num_rows)
        depths.append(plan.depths[has_loss])
        # Slot i's target is what lm_head reads at token i+1; only answer positions are kept.
        first = max(sequence.prompt_length - 1, 0)
        indices.append(plan.positions[has_loss] - first + num_targets)
        normed.append(sequence.normed_NH[first + 1 :].float())
        blocked = torch.from_numpy(~visible_rows(plan))
        masks.append(torch.zeros(blocked.shape).masked_fill_(blocked, -torch.inf))
        num_rows, num_targets = num_rows + len(plan.depths), num_targets + len(normed[-1])
    rows = HeadRows(
        token_ids_R=torch.cat(tokens),
        auxiliary_RA=torch.cat(hidden),
        is_mask_R=torch.from_numpy(np.concatenate([plan.depths > 0 for plan in plans])),
        positions_R=torch.from_numpy(np.concatenate([plan.positions for plan in plans])),
        masks=masks,
    )
    return Batch(
        rows=rows,
        supervised_rows=torch.from_numpy(np.concatenate(supervised)),
        depths=torch.from_numpy(np.concatenate(depths)),
        target_indices=torch.from_numpy(np.concatenate(indices)),
        target_normed_UH=torch.cat(normed),
    )


def batch_orders(lengths: Sequence[int], *, tokens_per_step: int, seed: int, epoch: int) -> Iterator[list[int]]:
    """The sequences of each step of an epoch, in an order that depends on seed and epoch alone.

    Args:
        lengths: Tokens of each sequence.
        tokens_per_step: A step ends once it holds this many.
        seed: Of the run.
        epoch: Pass over the data, from zero.
    """
    order = np.random.default_rng((seed, epoch)).permutation(len(lengths))
    chosen: list[int] = []
    total = 0
    for index in order.tolist():
        chosen.append(index)
        total += lengths[index]
        if total >= tokens_per_step:
            yield chosen
            chosen, total = [], 0
