"""The speculative loop: one target pass and one drafter pass a step, shared by every request in flight.

A plain EAGLE-3 head takes a pass for every draft.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass

import numpy as np

from peagle_trt.decode.acceptance import Drafts, propose, propose_candidates
from peagle_trt.decode.request import GenerationChunk, GenerationRequest
from peagle_trt.decode.sampling import check_sampling
from peagle_trt.decode.sequence import Sequence
from peagle_trt.decode.text import TextTokenizer
from peagle_trt.engine.protocol import DraftOutput, DraftRows, Engine, TargetOutput, TargetRows
from peagle_trt.engine.sequential import draft_in_turn
from peagle_trt.errors import RequestError

logger = logging.getLogger(__name__)

PROMPT_ROWS_A_STEP = 256
"""Rows of prompts a step reads at most: bounds how long running answers wait for a newcomer."""


@dataclass(slots=True)
class LoopStatistics:
    """Counters since the loop began."""

    num_steps: int = 0
    num_target_passes: int = 0
    num_drafter_passes: int = 0
    num_requests: int = 0
    num_output_tokens: int = 0
    largest_batch: int = 0


class DecodeLoop:
    """Admits requests to slots and advances all of them by one step at a time. Not thread-safe.

    Args:
        engine: Target and drafter.
        tokenizer: For text and stop strings; None works on token ids alone.
    """

    def __init__(self, engine: Engine, tokenizer: TextTokenizer | None) -> None:
        self.statistics = LoopStatistics()
        self._engine = engine
        self._tokenizer = tokenizer
        self._waiting: deque[tuple[GenerationRequest, float]] = deque()
        self._active: list[Sequence] = []
        self._free_slots = list(range(engine.shapes.max_batch_size - 1, -1, -1))
        self._in_flight: set[str] = set()
        self._cancelled: set[str] = set()

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._waiting or self._active)

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request.

        Raises:
            RequestError: It asks for what cannot be honoured: an empty or too long prompt, ids outside the vocabulary,
                settings outside their range, a request id in flight, stop strings without a tokenizer.
        """
        self._check(request)
        self._waiting.append((request, time.monotonic()))
        self._in_flight.add(request.request_id)
        self.statistics.num_requests += 1

    def cancel(self, request_id: str) -> None:
        """End a request at the next step; unknown ids are ignored, since a request may just have ended."""
        if request_id in self._in_flight:
            self._cancelled.add(request_id)

    def step(self) -> list[GenerationChunk]:
        """Advance every request by one target pass and one drafter pass.

        Returns:
            What became ready to send; the last chunk of a request has a `finish_reason`.
        """
        chunks = self._drop_cancelled()
        self._admit()
        if self._active:
            chunks += self._advance_and_collect()
        self._in_flight -= {chunk.request_id for chunk in chunks if chunk.finish_reason is not None}
        return chunks

    def _advance_and_collect(self) -> list[GenerationChunk]:
        try:
            self._advance()
        except Exception as error:
            # The boundary to the backend: requests in flight must hear of a failure, whatever it was.
            logger.exception("a decode step failed")
            return self._fail_all(f"{type(error).__name__}: {error}")
        return self._collect()

    def _advance(self) -> None:
        rows = self._plan_rows()
        by_slot = {sequence.slot: sequence for sequence in self._active}
        outputs = self._engine.run_target(rows)
        self._count_step(len(rows))
        pending: list[DraftRows] = []
        for item, output in zip(rows, outputs, strict=True):
            sequence = by_slot[item.slot]
            if sequence.is_prefilling:
                self._finish_prompt_rows(sequence, item, output)
            else:
                num_accepted = sequence.take_output(output)
                if self._wants_drafts(sequence):
                    pending.append(_rows_to_draft(sequence, item, output, num_accepted))
        if pending:
            self._draft(pending, by_slot)

    def _plan_rows(self) -> list[TargetRows]:
        """Every answer's verify rows, and chunks of prompts within the budget, oldest first."""
        budget = PROMPT_ROWS_A_STEP
        rows = []
        for sequence in self._active:
            if not sequence.is_prefilling:
                rows.append(sequence.verify_rows())
            elif budget > 0:
                rows.append(sequence.prompt_rows(budget))
                budget -= len(rows[-1].token_ids)
        return rows

    def _finish_prompt_rows(self, sequence: Sequence, item: TargetRows, output: TargetOutput) -> None:
        """Let the drafter read the same chunk; after the last one, sample the first token and draft."""
        sequence.num_prompt_read += len(item.token_ids)
        is_last = not sequence.is_prefilling
        if is_last:
            sequence.take_output(output)
        if sequence.draft_tokens == 0 or sequence.finish_reason is not None:
            return
        end = item.start_position + len(item.token_ids)
        # The drafter's row j carries the token after row j: the chunk shifted by one, its last entry the token beyond.
        rows = DraftRows(
            slot=sequence.slot,
            next_token_ids=np.array(sequence.token_ids[item.start_position + 1 : end + 1], np.int32),
            hidden=output.hidden,
            num_accepted=len(item.token_ids) - 1,
            start_position=item.start_position,
        )
        if is_last and sequence.useful_drafts:
            self._draft([rows], {sequence.slot: sequence})
        else:
            # Drafts of an unfinished prompt are of no use; one slot is the least a pass can fill.
            self._engine.run_drafter([rows], 1)
            self.statistics.num_drafter_passes += 1

    def _draft(self, rows: list[DraftRows], by_slot: dict[int, Sequence]) -> None:
        if not self._engine.drafter.is_parallel:
            self._draft_in_turn(rows, [by_slot[item.slot] for item in rows])
            return
        draft_tokens = max(by_slot[item.slot].draft_tokens for item in rows)
        output = self._engine.run_drafter(rows, draft_tokens)
        self.statistics.num_drafter_passes += 1
        for index, item in enumerate(rows):
            sequence = by_slot[item.slot]
            sequence.take_drafts(self._drafts_of(sequence, output, index).first(sequence.draft_tokens))

    def _draft_in_turn(self, rows: list[DraftRows], sequences: list[Sequence]) -> None:
        """With a plain EAGLE-3 head: a pass for each draft, continued from the draft that was chosen."""
        chosen: dict[int, Drafts] = {}

        def choose(place: int, output: DraftOutput, index: int) -> int:
            draft = self._drafts_of(sequences[place], output, index)
            chosen[place] = chosen[place].then(draft) if place in chosen else draft
            return draft.token_ids[0]

        counts = [sequence.useful_drafts for sequence in sequences]
        self.statistics.num_drafter_passes += draft_in_turn(self._engine, rows, counts, choose)
        for place, sequence in enumerate(sequences):
            sequence.take_drafts(chosen[place], counts[place])

    def _drafts_of(self, sequence: Sequence, output: DraftOutput, index: int) -> Drafts:
        settings = sequence.request.sampling
        if not sequence.request.samples_drafts or settings.temperature == 0.0:
            return Drafts(token_ids=tuple(output.token_ids[index].tolist()))
        vocab_size = self._engine.target.vocab_size
        if output.candidates is not None:
            return propose_candidates(output.candidates, index, vocab_size, settings.temperature, sequence.generator)
        assert output.logits is not None, "an engine gives candidates or logits"
        return propose(
            output.logits[index], self._engine.draft_to_target, vocab_size, settings.temperature, sequence.generator
        )

    def _wants_drafts(self, sequence: Sequence) -> bool:
        return sequence.finish_reason is None and sequence.useful_drafts > 0

    def _collect(self) -> list[GenerationChunk]:
        """Chunks of all active sequences; frees the slots of finished ones."""
        chunks = [chunk for sequence in self._active if (chunk := sequence.chunk()) is not None]
        for sequence in self._active:
            if sequence.finish_reason is not None:
                self._free_slots.append(sequence.slot)
        self._active = [sequence for sequence in self._active if sequence.finish_reason is None]
        self.statistics.num_output_tokens += sum(len(chunk.token_ids) for chunk in chunks)
        return chunks

    def _admit(self) -> None:
        while self._waiting and self._free_slots:
            request, submitted_at = self._waiting.popleft()
            self._active.append(
                Sequence(
                    request,
                    slot=self._free_slots.pop(),
                    draft_tokens=self._draft_tokens(request),
                    max_sequence_length=self._engine.shapes.max_sequence_length,
                    vocab_size=self._engine.target.vocab_size,
                    tokenizer=self._tokenizer,
                    submitted_at=submitted_at,
                )
            )

    def _draft_tokens(self, request: GenerationRequest) -> int:
        return self._engine.shapes.draft_tokens if request.draft_tokens is None else request.draft_tokens

    def _drop_cancelled(self) -> list[GenerationChunk]:
        if not self._cancelled:
            return []
        for sequence in self._active:
            if sequence.request.request_id in self._cancelled:
                sequence.finish("cancelled")
        waiting = [request for request, _ in self._waiting if request.request_id in self._cancelled]
        self._waiting = deque(item for item in self._waiting if item[0] not in waiting)
        self._cancelled.clear()
        never_started = [
            GenerationChunk(request_id=request.request_id, token_ids=(), text="", finish_reason="cancelled")
            for request in waiting
        ]
        finished = [sequence for sequence in self._active if sequence.finish_reason is not None]
        return never_started + (self._collect() if finished else [])

    def _fail_all(self, error: str) -> list[GenerationChunk]:
        chunks = []
        for sequence in self._active:
            # A sequence that had already finished in this very step still gets its answer.
            sequence.finish("error")
            chunk = sequence.chunk(error if sequence.finish_reason == "error" else "")
            assert chunk is not None
            chunks.append(chunk)
            self._free_slots.append(sequence.slot)
        self._active = []
        return chunks

    def _count_step(self, batch: int) -> None:
        self.statistics.num_steps += 1
        self.statistics.num_target_passes += 1
        self.statistics.largest_batch = max(self.statistics.largest_batch, batch)

    def _check(self, request: GenerationRequest) -> None:
        shapes, vocab_size = self._engine.shapes, self._engine.target.vocab_size
        check_sampling(request.sampling)
        if request.request_id in self._in_flight:
            raise RequestError(f"request id `{request.request_id}` is already in flight")
        if not request.prompt_ids:
            raise RequestError("the prompt is empty", hint="send at least one token")
        if len(request.prompt_ids) >= shapes.max_sequence_length:
            raise RequestError(
                f"the prompt has {len(request.prompt_ids)} tokens; at most {shapes.max_sequence_length - 1} fit",
                hint="shorten it, or build with a larger --max-sequence-length",
            )
        if request.max_tokens < 1:
            raise RequestError(f"`max_tokens` is {request.max_tokens}; expected 1 or more")
        if request.draft_tokens is not None and not 0 <= request.draft_tokens <= shapes.max_draft_tokens:
            raise RequestError(f"`draft_tokens` is {request.draft_tokens}; expected 0..{shapes.max_draft_tokens}")
        if request.stop_strings and self._tokenizer is None:
            raise RequestError("stop strings need a tokenizer, and this loop has none")
        for name, ids in (("prompt", request.prompt_ids), ("end_ids", request.end_ids)):
            if not 0 <= min(ids, default=0) <= max(ids, default=0) < vocab_size:
                raise RequestError(f"`{name}` holds a token id outside 0..{vocab_size - 1}")


def _rows_to_draft(sequence: Sequence, item: TargetRows, output: TargetOutput, num_accepted: int) -> DraftRows:
    """The verify step's outcome: the tokens that now follow its rows, the last one pending."""
    rows = len(item.token_ids)
    next_token_ids = np.zeros(rows, np.int32)
    kept = sequence.token_ids[item.start_position + 1 :]
    next_token_ids[: len(kept)] = kept
    return DraftRows(
        slot=sequence.slot,
        next_token_ids=next_token_ids,
        hidden=output.hidden,
        num_accepted=num_accepted,
        start_position=item.start_position,
    )
