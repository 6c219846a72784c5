"""The step of a one-engine worker, from what TensorRT-LLM hands it to what it wants back; names are TensorRT-LLM's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from peagle_trt.errors import CheckpointError, PlanError
from peagle_trt.trtllm.runtime.drafting import Drafting, PromptPiece, VerifiedStep
from peagle_trt.trtllm.runtime.geometry import next_input_tokens
from peagle_trt.trtllm.runtime.head import ServedHead
from peagle_trt.trtllm.runtime.slots import SlotTable
from peagle_trt.trtllm.served_settings import ServedSettings


class CacheParams(Protocol):
    """`KVCacheParams`: tokens of every sequence that the target's cache held before the step, on the host."""

    num_cached_tokens_per_seq: Sequence[int] | None


class AttentionMetadata(Protocol):
    """`AttentionMetadata`; sequences that read their prompt come first."""

    num_seqs: int
    num_contexts: int
    num_ctx_tokens: int
    seq_lens: Tensor
    kv_cache_params: CacheParams | None


class SpecMetadata(Protocol):
    """`Eagle3OneModelSpecMetadata` with the slots that our subclass looks up before every step."""

    request_ids: Sequence[int] | None
    hidden_states: Tensor
    peagle_slots: Tensor


class OneEngine:
    """A head served beside its target, with its cache and the slots of the requests in flight.

    Args:
        settings: Limits of the build.

    Attributes:
        slots: Slots by request; the metadata of every step looks them up.
    """

    def __init__(self, settings: ServedSettings) -> None:
        self.settings = settings
        self.slots = SlotTable(settings.max_batch_size)
        self._head: ServedHead | None = None
        self._drafting: Drafting | None = None

    def attach(self, head: ServedHead) -> None:
        """Take the head once its weights are there."""
        self._head = head

    def require_room(self, max_batch_size: int) -> None:
        """Refuse a server that takes more requests than the drafter's cache has slots.

        Raises:
            PlanError: It does.
        """
        if max_batch_size > self.settings.max_batch_size:
            raise PlanError(
                f"`max_batch_size` is {max_batch_size}; the build was made for {self.settings.max_batch_size}",
                hint="lower it, or build again with a larger --max-batch-size",
            )

    def step(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        accepted: Tensor,
        num_accepted: Tensor,
        attn_metadata: AttentionMetadata,
        spec_metadata: SpecMetadata,
    ) -> tuple[Tensor, Tensor]:
        """Draft after a verify step.

        Args:
            input_ids: [T] tokens the target read: pieces of prompts, then K+1 for every request that generates.
            position_ids: [1, T] or [T] their positions, corrected on the device where the overlap scheduler runs ahead.
            accepted: [B, K+1] tokens every request gained.
            num_accepted: [B] how many of them count.
            attn_metadata: The step's.
            spec_metadata: The step's.

        Returns:
            Drafts, [B, K] int32, and what the next step reads, [B, K+1] int32.

        Raises:
            PlanError: The target reuses its cache where the drafter cannot.
        """
        num_rows, num_generations = accepted.shape[1], attn_metadata.num_seqs - attn_metadata.num_contexts
        positions_T = position_ids.reshape(-1)[attn_metadata.num_ctx_tokens :]
        drafts = self._open().draft(
            VerifiedStep(
                pieces=self._pieces(attn_metadata, spec_metadata),
                input_ids_T=input_ids,
                auxiliary_TA=spec_metadata.hidden_states[: input_ids.shape[0]],
                accepted_BJ=accepted,
                num_accepted_B=num_accepted,
                slots_G=spec_metadata.peagle_slots[:num_generations],
                first_positions_G=positions_T.reshape(num_generations, num_rows)[:, 0],
            )
        )
        return drafts, next_input_tokens(accepted.int(), num_accepted, drafts)

    def _open(self) -> Drafting:
        """Takes the cache's memory at the first pass, which is one of those TensorRT-LLM measures its own by."""
        if self._drafting is None:
            if self._head is None:
                raise CheckpointError(
                    "the drafter has no weights: TensorRT-LLM was started without loading them",
                    hint="leave `load_format` out",
                )
            self._drafting = Drafting(self._head, num_slots=self.slots.num_rows, capacity=self.settings.capacity)
        return self._drafting

    def _pieces(self, attn_metadata: AttentionMetadata, spec_metadata: SpecMetadata) -> list[PromptPiece]:
        count = attn_metadata.num_contexts
        if count == 0:
            return []
        request_ids = list(spec_metadata.request_ids or ())
        params = attn_metadata.kv_cache_params
        starts = list((params.num_cached_tokens_per_seq if params is not None else None) or [0] * count)
        lengths = attn_metadata.seq_lens[:count].tolist()
        return [
            self._piece(request_id, start, length, request_ids)
            for request_id, start, length in zip(request_ids, starts, lengths, strict=False)
        ]

    def _piece(self, request_id: int, start: int, length: int, request_ids: Sequence[int]) -> PromptPiece:
        if start + length > self.settings.longest_sequence:
            raise PlanError(
                f"request {request_id} has {start + length} tokens; the build was made for "
                f"{self.settings.max_sequence_length}",
                hint="lower `max_seq_len`, or build with a larger --max-sequence-length",
            )
        slot = self.slots.read_chunk(request_id, start, length, request_ids)
        return PromptPiece(slot=slot, start=start, length=length)


def look_up_slots(slots: SlotTable, request_ids: Sequence[int], num_generations: int, out: Tensor) -> None:
    """Write the slots of a step's generating requests, which come last, where a captured graph reads them."""
    if num_generations == 0:
        return
    found = slots.find(request_ids[len(request_ids) - num_generations :])
    out[:num_generations].copy_(torch.tensor(found, dtype=torch.int64), non_blocking=True)
