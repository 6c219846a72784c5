"""The head in training behind the real decode loop: an engine of torch parts, and acceptance on held-out prompts.

Shape letters: n rows of a sequence, K slots, A auxiliary width, V vocabulary, D draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from peagle_trt.decode.loop import DecodeLoop
from peagle_trt.decode.request import GenerationRequest, RequestMetrics
from peagle_trt.engine.protocol import DraftOutput, DraftRows, DraftStep, TargetOutput, TargetRows, host_rows
from peagle_trt.errors import PeagleError
from peagle_trt.spec import GraphShapes
from peagle_trt.train.held_context import append
from peagle_trt.train.row_attention import KeysValues, SequenceRows

if TYPE_CHECKING:
    from torch import Tensor

    from peagle_trt.train.acceptance import FrozenTables
    from peagle_trt.train.head import HeadRows, PeagleHead
    from peagle_trt.train.target import TorchTarget

MAX_SLOTS = 8


class TorchEngine:
    """Target and head in torch, as the decode loop wants them; see `engine.protocol.Engine`."""

    def __init__(
        self,
        target: TorchTarget,
        head: PeagleHead,
        tables: FrozenTables,
        *,
        draft_tokens: int,
        num_slots: int,
        max_length: int,
    ) -> None:
        """Make empty caches.

        Args:
            target: The model.
            head: Its drafter, as it is now.
            tables: The target's tables.
            draft_tokens: K.
            num_slots: Sequences in flight.
            max_length: Tokens of the longest prompt with its answer.
        """
        self.target, self.drafter = target.config, head.config
        self.draft_to_target = tables.draft_to_target_D.cpu().numpy()
        self.shapes = GraphShapes(
            draft_tokens=draft_tokens,
            max_draft_tokens=draft_tokens,
            max_batch_size=num_slots,
            max_sequence_length=max_length,
            cache_capacity=max_length + draft_tokens + 1,
        )
        self._model, self._head, self._tables = target, head, tables
        self._cache = target.new_cache(num_slots, self.shapes.cache_capacity)
        self._drafted: list[list[KeysValues]] = [[] for _ in range(num_slots)]

    def run_target(self, rows: Sequence[TargetRows]) -> list[TargetOutput]:
        """One pass a sequence: they bring different numbers of rows."""
        import torch

        outputs = []
        with torch.inference_mode():
            for item in rows:
                token_ids = torch.from_numpy(item.token_ids.astype(np.int64))[None]
                start = torch.tensor([item.start_position])
                output = self._model.run(token_ids, start, self._cache.slot(item.slot))
                first = len(item.token_ids) - item.num_logit_rows
                logits = output.normed_BTH[0, first:] @ self._model.head_VH.T
                outputs.append(TargetOutput(logits=logits.cpu().numpy(), hidden=output.auxiliary_BTA[0].cpu().numpy()))
        return outputs

    def run_drafter(self, rows: Sequence[DraftRows], draft_tokens: int) -> DraftOutput:
        """One pass a sequence over its accepted rows, the bonus row and the mask rows."""
        import torch

        assert draft_tokens == 1 or self.drafter.is_parallel, "a pass of an EAGLE-3 head drafts one token"
        with torch.inference_mode():
            return self._output([self._draft(item, draft_tokens) for item in rows])

    def step_drafter(self, rows: Sequence[DraftStep]) -> DraftOutput:
        """One pass a sequence over its last draft, with an EAGLE-3 head."""
        import torch

        with torch.inference_mode():
            return self._output([self._step(item) for item in rows])

    def preload(self, *, plain_steps: bool = True) -> None:
        """Nothing waits on disk."""

    def close(self) -> None:
        """Free the drafter's caches."""
        self._drafted = [[] for _ in self._drafted]

    def _output(self, streams: list[Tensor]) -> DraftOutput:
        """Drafts of the slots of each sequence, [K, H] each."""
        import torch

        stream = torch.stack(streams)
        normed = self._head.normalise(stream)
        logits = normed @ self._tables.head_DH.float().T
        tokens = self._tables.draft_to_target_D[logits.argmax(dim=-1)]
        handed_on = normed if self.drafter.norm_output else stream
        return DraftOutput(
            token_ids=tokens.cpu().numpy().astype(np.int32),
            logits=logits.cpu().numpy(),
            next_hidden=None if self.drafter.is_parallel else handed_on[:, -1].cpu().numpy(),
        )

    def _step(self, item: DraftStep) -> Tensor:
        import torch

        prefix = self._held(item.slot, item.position)
        written: list[KeysValues] = []

        def attend(layer: int, queries: Tensor, own: KeysValues) -> Tensor:
            written.append(own)
            return _attend_last(queries, append([prefix[layer]], [own])[0])

        stream: Tensor = self._head.continue_stream(
            torch.from_numpy(item.hidden.copy())[None].to(self._head.device),
            torch.tensor([item.token_id]).to(self._head.device),
            torch.tensor([item.position]).to(self._head.device),
            self._tables.embeddings_VH,
            attend,
        )
        # The next verify step's rows begin before this one, which drops it.
        self._drafted[item.slot] = append(prefix, written)
        return stream

    def _held(self, slot: int, length: int) -> list[KeysValues]:
        """Keys and values of the first rows of a sequence; empty at its start."""
        held = self._drafted[slot] if length else []
        prefix = [KeysValues(keys=layer.keys[:length], values=layer.values[:length]) for layer in held]
        assert not prefix or len(prefix[0].keys) == length, "the drafter has read all before these rows"
        return prefix

    def _draft(self, item: DraftRows, draft_tokens: int) -> Tensor:
        num_real = item.num_accepted + 1
        prefix = self._held(item.slot, item.start_position)
        written: list[KeysValues] = []
        rows = self._rows(item, num_real, draft_tokens)
        stream_RH = self._head.stream(rows, self._tables.embeddings_VH, prefix or None, written)
        # Mask rows leave nothing behind.
        real = [KeysValues(keys=layer.keys[:num_real], values=layer.values[:num_real]) for layer in written]
        self._drafted[item.slot] = append(prefix or None, real)
        return stream_RH[num_real - 1 :]

    def _rows(self, item: DraftRows, num_real: int, draft_tokens: int) -> HeadRows:
        import torch

        from peagle_trt.train.head import HeadRows

        num_masks = draft_tokens - 1
        token_ids = torch.full((num_real + num_masks,), self._head.config.mask_token_id)
        token_ids[:num_real] = torch.from_numpy(item.next_token_ids[:num_real].astype(np.int64))
        hidden = torch.zeros(num_real + num_masks, item.hidden.shape[1])
        hidden[:num_real] = torch.from_numpy(host_rows(item.hidden)[:num_real].copy())
        places = torch.arange(num_real + num_masks)
        layout = SequenceRows(
            num_prefix=item.start_position,
            num_context=num_real,
            anchors=np.full(num_masks, item.start_position + num_real - 1),
            depths=np.arange(1, draft_tokens),
        )
        return HeadRows(
            token_ids_R=token_ids.to(self._head.device),
            auxiliary_RA=hidden.to(self._head.device),
            is_mask_R=(places >= num_real).to(self._head.device),
            positions_R=(places + item.start_position).to(self._head.device),
            layouts=[layout],
        )


def _attend_last(queries_1QD: Tensor, held: KeysValues) -> Tensor:
    """Attention of one row over all that is held, itself the last of it; [1, Q*D]."""
    import torch.nn.functional as functional

    group = queries_1QD.shape[1] // held.keys.shape[1]
    keys, values = (part.transpose(0, 1).repeat_interleave(group, dim=0)[None] for part in (held.keys, held.values))
    mixed = functional.scaled_dot_product_attention(queries_1QD.transpose(0, 1)[None], keys, values)
    return mixed[0].transpose(0, 1).flatten(1)


def decode_prompts(
    engine: TorchEngine, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, end_ids: tuple[int, ...]
) -> list[RequestMetrics]:
    """Answer prompts greedily through the decode loop.

    Args:
        engine: Target and head.
        prompts: Token ids.
        max_new_tokens: Limit of an answer.
        end_ids: Tokens that end one.

    Returns:
        What each answer cost, in order.

    Raises:
        PeagleError: A step failed.
    """
    loop = DecodeLoop(engine, None)
    for place, prompt in enumerate(prompts):
        loop.submit(
            GenerationRequest(
                request_id=str(place), prompt_ids=tuple(prompt), max_tokens=max_new_tokens, end_ids=end_ids
            )
        )
    metrics: dict[str, RequestMetrics] = {}
    while loop.has_work:
        for chunk in loop.step():
            if chunk.finish_reason == "error":
                raise PeagleError(f"evaluation failed in the decode loop: {chunk.error}")
            if chunk.metrics is not None:
                metrics[chunk.request_id] = chunk.metrics
    return [metrics[str(place)] for place in range(len(prompts))]


def acceptance_metrics(answers: Sequence[RequestMetrics], draft_tokens: int) -> dict[str, object]:
    """Acceptance length over all steps of all answers, bonus counted, and the share of steps that took each slot."""
    num_steps = sum(answer.num_verify_steps for answer in answers)
    by_position = np.sum([np.array(answer.accepted_by_position) for answer in answers], axis=0)
    return {
        "acceptance_length": 1.0 + sum(answer.num_accepted_tokens for answer in answers) / max(1, num_steps),
        "acceptance_by_position": [round(float(count) / max(1, num_steps), 4) for count in by_position[:draft_tokens]],
        "evaluated_tokens": sum(answer.num_output_tokens for answer in answers),
    }
