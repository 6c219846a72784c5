"""Training-time test of an EAGLE-3 head: rollouts unrolled pass by pass, each on the states of the pass before.

From every slot of the answer a rollout runs as drafting would: its first row reads the target's state, every later one
the head's own. A row sees the context up to its rollout's anchor and its own rollout up to itself, never another one's,
which is `sampling.visible_rows` again. Gradients flow through all passes.

Shape letters: C context slots, M rollouts of a pass, b rollouts of a block, d depths behind a row, S supervised rows,
H hidden, Q query heads, N key-value heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from peagle_trt.train.batches import Piece, pack_pieces, supervised_slots
from peagle_trt.train.gradients import LossSettings, StepSums
from peagle_trt.train.row_attention import BLOCK_ROWS, KEPT_KEYS, KeysValues
from peagle_trt.train.sampling import RowPlan

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

    from peagle_trt.train.acceptance import FrozenTables
    from peagle_trt.train.features import AnswerText, TrainingSequence
    from peagle_trt.train.head import HeadRows, PeagleHead


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrolledPass:
    """The rows of one depth.

    Attributes:
        depth: How many passes came before.
        anchors: Slot each rollout started from, [M] int64, ascending; the row's own slot is `anchors + depth`.
        stream_MH: The rows after the last layer, before the final norm.
    """

    depth: int
    anchors: NDArray[np.int64]
    stream_MH: Tensor


def unroll(
    head: PeagleHead, embeddings_VH: Tensor, sequence: TrainingSequence, anchors: NDArray[np.int64], num_depths: int
) -> Iterator[UnrolledPass]:
    """Run rollouts over the true text; a rollout ends with the last slot that has a target.

    Args:
        head: A plain EAGLE-3 head.
        embeddings_VH: The target's embedding table.
        sequence: Tokens and hidden states.
        anchors: Where rollouts start, ascending.
        num_depths: Rows of a rollout.

    Yields:
        A pass a depth, the first one that of depth 0.

    Source: EAGLE-3 (arXiv 2503.01840, section 3.2); SpecForge's unrolled training for the mask.
    """
    import torch

    num_slots = len(sequence.token_ids) - 2
    context: list[KeysValues] = []
    device = head.device
    stream_CH = head.stream(_context_rows(sequence, device), embeddings_VH, None, context)
    hidden_MH: Tensor = stream_CH[torch.from_numpy(anchors).to(device)]
    yield UnrolledPass(depth=0, anchors=anchors, stream_MH=hidden_MH)
    rollouts: list[list[KeysValues]] = [[] for _ in context]
    for depth in range(1, num_depths):
        # Anchors ascend, so the rollouts that reach the end of the text are the last ones.
        anchors = anchors[anchors + depth < num_slots]
        if len(anchors) == 0:
            return
        handed_on = head.normalise(hidden_MH) if head.config.norm_output else hidden_MH
        attention = _RolloutAttention(head.compute_dtype, anchors, context, rollouts)
        slots = torch.from_numpy(anchors + depth)
        token_ids = sequence.token_ids.long()[slots + 1].to(device)
        hidden_MH = head.continue_stream(
            handed_on[: len(anchors)], token_ids, slots.to(device), embeddings_VH, attention.attend
        )
        yield UnrolledPass(depth=depth, anchors=anchors, stream_MH=hidden_MH)


def unrolled_plan(sequence: AnswerText, num_depths: int) -> RowPlan:
    """The rows of all rollouts of a sequence that have a loss, in the order of `RowPlan`, and its context slots."""
    num_slots = len(sequence.token_ids) - 2
    starts = np.flatnonzero(supervised_slots(sequence))
    anchors, depths = np.repeat(starts, num_depths - 1), np.tile(np.arange(1, num_depths), len(starts))
    kept = anchors + depths < num_slots
    return RowPlan(
        anchors=np.concatenate([np.arange(num_slots), anchors[kept]]),
        depths=np.concatenate([np.zeros(num_slots, np.int64), depths[kept]]),
    )


def accumulate_unrolled(
    head: PeagleHead,
    tables: FrozenTables,
    sequences: Sequence[TrainingSequence],
    *,
    settings: LossSettings,
    total_weight: float,
    num_depths: int,
) -> StepSums:
    """Add the gradients of the mean loss of a step to the head's parameters, a sequence at a time.

    Args:
        head: A plain EAGLE-3 head; its `.grad` fields are added to.
        tables: The target's frozen tables.
        sequences: Of the step.
        settings: The loss.
        total_weight: Divides the loss: `gradients.step_weight` of the step's plans.
        num_depths: Passes of a rollout.

    Returns:
        The loss and what is worth watching.
    """
    import torch

    sums = StepSums(loss=0.0, agreements=torch.zeros(num_depths), counts=torch.zeros(num_depths), broken_origins=set())
    for origin, sequence in enumerate(sequences):
        _add_sequence(head, tables, sequence, origin, settings, total_weight, num_depths, sums)
    return sums


def _add_sequence(
    head: PeagleHead,
    tables: FrozenTables,
    sequence: TrainingSequence,
    origin: int,
    settings: LossSettings,
    total_weight: float,
    num_depths: int,
    sums: StepSums,
) -> None:
    import torch

    from peagle_trt.train.loss import distillation_loss

    anchors = np.flatnonzero(supervised_slots(sequence))
    if len(anchors) == 0:
        return
    passes = list(unroll(head, tables.embeddings_VH, sequence, anchors, num_depths))
    depths = torch.cat([torch.full((len(each.anchors),), each.depth) for each in passes]).to(head.device)
    # Slot i's target is what lm_head reads at token i+1; only answer positions are kept.
    first = max(sequence.prompt_length - 1, 0)
    slots = np.concatenate([each.anchors + each.depth for each in passes])
    parts = distillation_loss(
        head.normalise(torch.cat([each.stream_MH for each in passes])),
        sequence.normed_NH[first + 1 :].to(head.device).float() / settings.target_temperature,
        torch.from_numpy(slots - first).to(head.device),
        tables.head_DH,
        settings.objective,
    )
    weights = torch.pow(settings.depth_decay, depths)
    if settings.refused_weight != 1.0:
        starts = torch.from_numpy(np.concatenate([each.anchors for each in passes])).to(head.device)
        weights = weights * _survival(starts, depths, parts.agrees_S, settings.refused_weight)
    loss = (parts.loss_S * (weights / total_weight)).sum()
    sums.loss += float(loss.detach())
    sums.agreements += torch.bincount(depths, weights=parts.agrees_S.float(), minlength=num_depths).cpu()
    sums.counts += torch.bincount(depths, minlength=num_depths).cpu()
    num_rows = len(sequence.token_ids) - 2 + int((depths > 0).sum())
    sums.num_rows, sums.peak_rows = sums.num_rows + num_rows, max(sums.peak_rows, num_rows)
    if parts.loss_S.detach().isfinite().all():
        torch.autograd.backward(loss)
    else:
        sums.broken_origins.add(origin)


def _survival(anchors_S: Tensor, depths_S: Tensor, agrees_S: Tensor, refused_weight: float) -> Tensor:
    import torch

    from peagle_trt.train.survival import survival_weights

    is_first = depths_S == 0
    first_agrees = torch.zeros(int(anchors_S.max()) + 1, dtype=torch.bool, device=agrees_S.device)
    first_agrees[anchors_S[is_first]] = agrees_S[is_first]
    origins = torch.zeros_like(anchors_S)
    return survival_weights(origins, anchors_S, depths_S, agrees_S, {0: first_agrees}, refused_weight)


def _context_rows(sequence: TrainingSequence, device: torch.device) -> HeadRows:
    num_slots = len(sequence.token_ids) - 2
    plan = RowPlan(anchors=np.arange(num_slots), depths=np.zeros(num_slots, np.int64))
    piece = Piece(sequence=sequence, plan=plan, has_loss=np.zeros(num_slots, bool))
    return pack_pieces([piece], 0, device).rows


class _RolloutAttention:
    """Attention of one pass's rows: the context up to each anchor, and the rows of the same rollout.

    Args:
        compute_dtype: Type of the products.
        anchors: Of the pass, [M].
        context: Keys and values of the context slots, a layer each.
        rollouts: Those of earlier passes of every layer; takes the ones of this pass.
    """

    def __init__(
        self,
        compute_dtype: torch.dtype,
        anchors: NDArray[np.int64],
        context: Sequence[KeysValues],
        rollouts: Sequence[list[KeysValues]],
    ) -> None:
        self._compute_dtype, self._anchors = compute_dtype, anchors
        self._context, self._rollouts = context, rollouts

    def attend(self, layer: int, queries_MQD: Tensor, own: KeysValues) -> Tensor:
        """[M, Q*D] in the type of the products."""
        import torch
        from torch.utils.checkpoint import checkpoint

        self._rollouts[layer].append(own)
        blocks = []
        for first in range(0, len(self._anchors), BLOCK_ROWS):
            rows = slice(first, first + BLOCK_ROWS)
            anchors = self._anchors[rows]
            num_slots = int(anchors[-1]) + 1
            # Earlier passes had more rollouts, at the end; block by block, each depth's keys are the rows' diagonal.
            chosen = slice(first, first + len(anchors))
            behind = [tensor[chosen] for each in self._rollouts[layer] for tensor in (each.keys, each.values)]
            context = self._context[layer]
            given = (queries_MQD[rows], context.keys[:num_slots], context.values[:num_slots], *behind)
            attend = _Block(self._compute_dtype, torch.from_numpy(anchors).to(queries_MQD.device))
            if torch.is_grad_enabled() and num_slots > KEPT_KEYS:
                blocks.append(checkpoint(attend, *given, use_reentrant=False, preserve_rng_state=False))
            else:
                blocks.append(attend(*given))
        return torch.cat(blocks)


@dataclass(frozen=True, slots=True)
class _Block:
    """Rows that are computed together."""

    compute_dtype: torch.dtype
    anchors_b: Tensor

    def __call__(self, queries_bQD: Tensor, keys_CND: Tensor, values_CND: Tensor, *behind: Tensor) -> Tensor:
        """[b, Q*D]: one softmax over the scores of the context and those of the rollout's own rows."""
        import torch

        group = queries_bQD.shape[1] // keys_CND.shape[1]
        query = queries_bQD.to(self.compute_dtype) * queries_bQD.shape[-1] ** -0.5
        grouped = query.unflatten(1, (keys_CND.shape[1], group))
        keys_CND, values_CND = keys_CND.to(self.compute_dtype), values_CND.to(self.compute_dtype)
        keys_bdND, values_bdND = (
            torch.stack(part, dim=1).to(self.compute_dtype) for part in (behind[::2], behind[1::2])
        )
        context = torch.einsum("bngh,cnh->ngbc", grouped, keys_CND)
        places = torch.arange(len(keys_CND), device=keys_CND.device)
        context = context.masked_fill(places > self.anchors_b[:, None], -torch.inf)
        own = torch.einsum("bngh,bdnh->ngbd", grouped, keys_bdND)
        weights = torch.cat([context, own], dim=-1).float().softmax(dim=-1).to(self.compute_dtype)
        mixed = torch.einsum("ngbc,cnh->bngh", weights[..., : len(keys_CND)], values_CND)
        mixed = mixed + torch.einsum("ngbd,bdnh->bngh", weights[..., len(keys_CND) :], values_bdND)
        return mixed.flatten(1)
