"""One drafter's pass for everything a step of the engine holds: pieces of prompts, and verify steps.

Letters: B requests, G of them that generate, K drafts, J = K+1, W = 2K, T rows of the target's pass, A auxiliary width,
R rows of the drafter's pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from peagle_trt.trtllm.runtime.attention import attend_block, attend_piece
from peagle_trt.trtllm.runtime.geometry import expand_rows
from peagle_trt.trtllm.runtime.head import FlatRows, ServedHead


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPiece:
    """A piece of a prompt, known on the host: such steps never run from a CUDA graph.

    Attributes:
        slot: Slot of the request.
        start: Position of its first token.
        length: Tokens.
    """

    slot: int
    start: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedStep:
    """What the target's pass yielded; its rows are those of the pieces, then K+1 for each request that generates.

    Attributes:
        pieces: Pieces of prompts.
        input_ids_T: Tokens the target read.
        auxiliary_TA: Its auxiliary states.
        accepted_BJ: Tokens every request gained; a prompt's is its first.
        num_accepted_B: How many of them count.
        slots_G: Slots of the requests that generate.
        first_positions_G: Positions of their first rows.
    """

    pieces: Sequence[PromptPiece]
    input_ids_T: Tensor
    auxiliary_TA: Tensor
    accepted_BJ: Tensor
    num_accepted_B: Tensor
    slots_G: Tensor
    first_positions_G: Tensor


class Drafting:
    """A head with its cache.

    Args:
        head: The head.
        num_slots: Slots, the one for padding included.
        capacity: Positions a slot holds; the longest sequence and 2K more.
    """

    def __init__(self, head: ServedHead, *, num_slots: int, capacity: int) -> None:
        self.head = head
        self.capacity = capacity
        self.cache = head.new_cache(num_slots, capacity)
        # Of every slot, the state of the last token of a prompt so far: its follower comes with the next piece.
        self._last_SH = torch.zeros(num_slots, head.config.hidden_size, dtype=head.dtype, device=head.device)

    def draft(self, step: VerifiedStep) -> Tensor:
        """K drafts for every request of a step, [B, K] int32, in one pass."""
        num_rows = step.accepted_BJ.shape[1]
        fused_TH = self.head.fuse(step.auxiliary_TA)
        num_prompt_rows = sum(piece.length for piece in step.pieces)
        layout = _Layout()
        self._add_pieces(layout, step, fused_TH, num_rows - 1)
        if len(step.pieces) < len(step.accepted_BJ):
            self._add_block(layout, step, fused_TH[num_prompt_rows:])
        return self._run(layout, num_rows - 1)

    def _add_pieces(self, layout: _Layout, step: VerifiedStep, fused_TH: Tensor, num_drafts: int) -> None:
        first = 0
        for index, piece in enumerate(step.pieces):
            rows = slice(first, first + piece.length)
            first += piece.length
            tokens = torch.cat([step.input_ids_T[rows][1:], step.accepted_BJ[index, :1]])
            hidden, start = fused_TH[rows], piece.start
            if start:
                # What was read of the last piece's last token stood before a token that nobody knew yet.
                tokens = torch.cat([step.input_ids_T[rows][:1], tokens])
                hidden, start = torch.cat([self._last_SH[piece.slot][None], hidden]), start - 1
            self._last_SH[piece.slot] = fused_TH[first - 1]
            masks = num_drafts - 1
            layout.add_piece(
                tokens=torch.cat([tokens.int(), tokens.new_full((masks,), self.head.config.mask_token_id).int()]),
                hidden=torch.cat([hidden, self.head.fused_mask_H.expand(masks, -1)]),
                slot=piece.slot,
                start=start,
                num_drafts=num_drafts,
            )

    def _add_block(self, layout: _Layout, step: VerifiedStep, fused_TH: Tensor) -> None:
        num_contexts, num_rows = len(step.pieces), step.accepted_BJ.shape[1]
        rows = expand_rows(
            step.accepted_BJ[num_contexts:].int(),
            step.num_accepted_B[num_contexts:],
            fused_TH.view(-1, num_rows, fused_TH.shape[1]),
            # Warm-up makes up positions; a real request's lie inside.
            step.first_positions_G.long().clamp(max=self.capacity - 2 * (num_rows - 1)),
            mask_token_id=self.head.config.mask_token_id,
            fused_mask_H=self.head.fused_mask_H,
        )
        layout.add_block(
            tokens_GW=rows.token_ids_GW,
            hidden_GWH=rows.hidden_GWH,
            slots_G=step.slots_G.long(),
            positions_GW=rows.positions_GW,
            sample_rows_GK=rows.sample_rows_GK,
        )

    def _run(self, layout: _Layout, num_drafts: int) -> Tensor:
        rows, samples_N = layout.rows(), layout.samples()
        stream_RH = self.head.run(rows, self.cache, layout.attend)
        return self.head.draft(stream_RH[samples_N]).view(-1, num_drafts)


class _Layout:
    """Flat rows, piece by piece, with how each part attends and which rows are sampled."""

    def __init__(self) -> None:
        self._rows: list[FlatRows] = []
        self._samples: list[Tensor] = []
        self._pieces: list[tuple[int, int, int]] = []
        self._block: tuple[Tensor, Tensor] | None = None
        self._num_rows = 0

    def add_piece(self, *, tokens: Tensor, hidden: Tensor, slot: int, start: int, num_drafts: int) -> None:
        count = len(tokens)
        positions = torch.arange(start, start + count, device=tokens.device)
        self._append(tokens, hidden, torch.full_like(positions, slot), positions)
        self._pieces.append((count, slot, start))
        first = self._num_rows - num_drafts
        self._samples.append(torch.arange(first, self._num_rows, device=tokens.device))

    def add_block(
        self, *, tokens_GW: Tensor, hidden_GWH: Tensor, slots_G: Tensor, positions_GW: Tensor, sample_rows_GK: Tensor
    ) -> None:
        width = tokens_GW.shape[1]
        bases_G = self._num_rows + width * torch.arange(len(tokens_GW), device=tokens_GW.device)
        self._samples.append((bases_G[:, None] + sample_rows_GK).flatten())
        slots_GW = slots_G[:, None].expand(-1, width)
        self._append(tokens_GW.flatten(), hidden_GWH.flatten(0, 1), slots_GW.flatten(), positions_GW.flatten())
        self._block = slots_G, positions_GW

    def rows(self) -> FlatRows:
        return FlatRows(
            token_ids_R=torch.cat([each.token_ids_R for each in self._rows]),
            hidden_RH=torch.cat([each.hidden_RH for each in self._rows]),
            slots_R=torch.cat([each.slots_R for each in self._rows]),
            positions_R=torch.cat([each.positions_R for each in self._rows]),
        )

    def samples(self) -> Tensor:
        return torch.cat(self._samples)

    def attend(self, queries_RQD: Tensor, keys_SCND: Tensor, values_SCND: Tensor) -> Tensor:
        mixed, first = [], 0
        for count, slot, start in self._pieces:
            queries = queries_RQD[first : first + count]
            mixed.append(attend_piece(queries, keys_SCND[slot], values_SCND[slot], start))
            first += count
        if self._block is not None:
            slots_G, positions_GW = self._block
            queries_GWQD = queries_RQD[first:].view(*positions_GW.shape, *queries_RQD.shape[1:])
            mixed.append(attend_block(queries_GWQD, keys_SCND, values_SCND, slots_G, positions_GW).flatten(0, 1))
        return torch.cat(mixed)

    def _append(self, tokens: Tensor, hidden: Tensor, slots: Tensor, positions: Tensor) -> None:
        self._rows.append(FlatRows(token_ids_R=tokens, hidden_RH=hidden, slots_R=slots, positions_R=positions))
        self._num_rows += len(tokens)
