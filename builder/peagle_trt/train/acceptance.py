"""Acceptance length by an exact walk over the target's own greedy text, without running the target again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from peagle_trt.decode.prompt_lookup import DraftLookup, LookupExperience
from peagle_trt.train.batches import pack_rows
from peagle_trt.train.sampling import full_rows
from peagle_trt.train.unrolled import unroll

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

    from peagle_trt.train.features import TrainingSequence
    from peagle_trt.train.head import PeagleHead


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Counts of a walk.

    Attributes:
        num_steps: Verify steps.
        num_tokens: Tokens they produced, the bonus token of each step among them.
        accepted_by_position: Steps that accepted slot k, [K].
    """

    num_steps: int
    num_tokens: int
    accepted_by_position: tuple[int, ...]

    @classmethod
    def none(cls, draft_tokens: int) -> Acceptance:
        """Of no steps at all."""
        return cls(num_steps=0, num_tokens=0, accepted_by_position=(0,) * draft_tokens)

    def __add__(self, other: Acceptance) -> Acceptance:
        """Both walks' counts, with the same K."""
        return Acceptance(
            num_steps=self.num_steps + other.num_steps,
            num_tokens=self.num_tokens + other.num_tokens,
            accepted_by_position=tuple(
                map(sum, zip(self.accepted_by_position, other.accepted_by_position, strict=True))
            ),
        )

    @property
    def length(self) -> float:
        """Tokens a verify step, bonus counted."""
        return self.num_tokens / max(1, self.num_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenTables:
    """What a head borrows from its target.

    Attributes:
        embeddings_VH: Embedding table, float32.
        head_DH: lm_head's rows of the draft vocabulary, in the type to compute with.
        draft_to_target_D: Target id of each draft id.
    """

    embeddings_VH: Tensor
    head_DH: Tensor
    draft_to_target_D: Tensor


def freeze_tables(
    embeddings_VH: Tensor, head_VH: Tensor, draft_to_target: NDArray[np.int64], compute_dtype: torch.dtype
) -> FrozenTables:
    """Select lm_head's rows of the draft vocabulary."""
    import torch

    chosen = torch.from_numpy(draft_to_target).to(head_VH.device)
    return FrozenTables(
        embeddings_VH=embeddings_VH.float(), head_DH=head_VH[chosen].to(compute_dtype), draft_to_target_D=chosen
    )


def measure_acceptance(
    head: PeagleHead, tables: FrozenTables, sequences: Iterable[TrainingSequence], *, draft_tokens: int
) -> Acceptance:
    """Walk greedy answers as a decode loop would, with K drafts a step.

    Exact wherever the target answers the same in a batch as alone: a step's drafts depend only on the accepted text
    and its hidden states, and both are in the sequence.

    Args:
        head: The drafter.
        tables: The target's embeddings and lm_head rows.
        sequences: Greedy answers of the target.
        draft_tokens: K.

    Returns:
        Counts over all sequences; drafts beyond the end of an answer count as neither accepted nor produced.
    """
    walks = (walk(sequence, draft_everywhere(head, tables, sequence, draft_tokens)) for sequence in sequences)
    return sum(walks, start=Acceptance.none(draft_tokens))


def walk(
    sequence: TrainingSequence, drafts_SK: NDArray[np.int64], lookups: LookupExperience | None = None
) -> Acceptance:
    """Walk one answer with the drafts that a head makes at each of its slots.

    Args:
        sequence: The answer.
        drafts_SK: As `draft_everywhere` gives them; fewer columns for a smaller K.
        lookups: Let copies from the text take the place of drafts, and learn from it, as a decode loop does for a
            request with `prompt_lookup`; None verifies the head's drafts. Of a parallel head: behind a draft that a
            copy replaced, an EAGLE-3 head would draft something else.
    """
    token_ids = sequence.token_ids.tolist()
    draft_tokens = drafts_SK.shape[1]
    lookup = None if lookups is None else DraftLookup(lookups)
    num_steps, num_tokens, accepted_by_position = 0, 0, [0] * draft_tokens
    slot, end = sequence.prompt_length - 1, len(token_ids)
    while slot + 2 < end:
        truth = token_ids[slot + 2 : slot + 2 + draft_tokens]
        drafts = drafts_SK[slot - sequence.prompt_length + 1, : len(truth)].tolist()
        if lookup is not None:
            drafts = lookup.mix(token_ids[: slot + 2], drafts, None)[0]
        accepted = 0
        while accepted < len(truth) and drafts[accepted] == truth[accepted]:
            accepted_by_position[accepted] += 1
            accepted += 1
        if lookup is not None:
            lookup.judge(token_ids[slot + 2 : slot + 3 + accepted], accepted)
        num_steps += 1
        num_tokens += min(accepted + 1, end - slot - 2)
        slot += accepted + 1
    return Acceptance(num_steps=num_steps, num_tokens=num_tokens, accepted_by_position=tuple(accepted_by_position))


def draft_everywhere(
    head: PeagleHead, tables: FrozenTables, sequence: TrainingSequence, draft_tokens: int
) -> NDArray[np.int64]:
    """The drafts of a rollout at every slot of an answer; a P-EAGLE head's in one forward pass.

    Returns:
        Target ids, [slots from the first generated token on, K].
    """
    import torch

    if not head.config.is_parallel:
        return _draft_in_turn(head, tables, sequence, draft_tokens)
    num_slots = len(sequence.token_ids) - 2
    anchors = np.arange(sequence.prompt_length - 1, num_slots)
    plan = full_rows(num_slots, anchors, draft_tokens)
    with torch.inference_mode():
        # Rollouts near the end reach beyond the text; their rows read no token and no hidden state of it.
        hidden_RH = head(
            pack_rows([sequence], [plan], head.config.mask_token_id, head.device).rows, tables.embeddings_VH
        )
        chosen = torch.cat([hidden_RH[torch.from_numpy(anchors).to(head.device)], hidden_RH[num_slots:]])
        logits = (chosen.to(tables.head_DH.dtype) @ tables.head_DH.T).float()
        tokens = tables.draft_to_target_D[logits.argmax(dim=-1)].cpu().numpy()
    first, masked = tokens[: len(anchors), None], tokens[len(anchors) :].reshape(len(anchors), draft_tokens - 1)
    drafts: NDArray[np.int64] = np.concatenate([first, masked], axis=1)
    return drafts


def _draft_in_turn(
    head: PeagleHead, tables: FrozenTables, sequence: TrainingSequence, draft_tokens: int
) -> NDArray[np.int64]:
    """The same of an EAGLE-3 head, a pass a draft.

    A pass reads the text where drafting would read the draft. They differ behind a wrong draft only, where no walk
    looks. What lies beyond the text is -1, which is no token.
    """
    import torch

    anchors = np.arange(sequence.prompt_length - 1, len(sequence.token_ids) - 2)
    drafts = np.full((len(anchors), draft_tokens), -1, np.int64)
    with torch.inference_mode():
        for each in unroll(head, tables.embeddings_VH, sequence, anchors, draft_tokens):
            logits = (head.normalise(each.stream_MH).to(tables.head_DH.dtype) @ tables.head_DH.T).float()
            chosen = tables.draft_to_target_D[logits.argmax(dim=-1)]
            drafts[: len(each.anchors), each.depth] = chosen.cpu().numpy()
    return drafts
