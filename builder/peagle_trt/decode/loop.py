"""The speculative loop: one target pass and one drafter pass a step, shared by every request in flight.

A plain EAGLE-3 head takes a pass for every draft.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from peagle_trt.decode.acceptance import NO_DRAFTS, Drafts, propose, propose_candidates
from peagle_trt.decode.guide import GuideBars
from peagle_trt.decode.guided_drafts import drawn_with, guided_drafts, likeliest
from peagle_trt.decode.load import LoopLoad, look
from peagle_trt.decode.prompt_shares import share_prompt_rows
from peagle_trt.decode.request import FinishReason, GenerationChunk, GenerationRequest
from peagle_trt.decode.request_check import check_request
from peagle_trt.decode.sequence import Sequence
from peagle_trt.decode.slots import Slots
from peagle_trt.decode.speculation import MIN_PROMPT_ROWS, DraftWish, SpeculationController
from peagle_trt.decode.text import TextTokenizer
from peagle_trt.decode.waiting_line import Waiting, WaitingLine
from peagle_trt.engine.protocol import DraftOutput, DraftRows, Engine, TargetOutput, TargetRows
from peagle_trt.engine.sequential import draft_in_turn
from peagle_trt.errors import RequestError

logger = logging.getLogger(__name__)

PROMPT_ROWS_A_STEP = 256
"""Rows a step has for prompts, less what verification and the drafter's masks take."""
DRAFTER_CHUNK_ROWS = 64
"""Rows of a prompt that come together before the drafter reads them: short passes cost nearly as much as long ones."""
MAX_UNREAD_BYTES = 8 << 20
"""Hidden states a request keeps for its drafter while speculation is off: 1,200 rows of SmolLM2, 240 of gpt-oss."""


@dataclass(slots=True)
class LoopStatistics:
    """Counters since the loop began."""

    num_steps: int = 0
    num_target_passes: int = 0
    num_drafter_passes: int = 0
    num_requests: int = 0
    num_output_tokens: int = 0
    largest_batch: int = 0
    num_reused_tokens: int = 0


class DecodeLoop:
    """Admits requests to slots and advances all of them by one step at a time. Not thread-safe.

    Args:
        engine: Target and drafter.
        tokenizer: For text and stop strings; None works on token ids alone.
        max_waiting: Requests that may wait for a slot; None for any number.
        reuses_prefixes: Start a prompt from what a free slot still holds of it; a measurement that asks the same twice
            would then compare unlike things.
        controller: Chooses K where a request leaves that open; several loops of one engine may share what it learns.
        clock: Seconds, for what passes cost.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: TextTokenizer | None,
        *,
        max_waiting: int | None = None,
        reuses_prefixes: bool = False,
        controller: SpeculationController | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._controller = controller or SpeculationController(engine.shapes.max_draft_tokens)
        self._clock = clock
        self.statistics = LoopStatistics()
        self._engine = engine
        self._tokenizer = tokenizer
        self._waiting = WaitingLine(max_waiting)
        self._active: list[Sequence] = []
        self._slots = Slots(engine.shapes.max_batch_size, reuses_prefixes=reuses_prefixes)
        self._in_flight: set[str] = set()
        self._cancelled: set[str] = set()

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return len(self._waiting) > 0 or bool(self._active)

    @property
    def load(self) -> LoopLoad:
        """What it is busy with. The one thing that another thread may ask for while the loop steps."""
        shapes = self._engine.shapes
        return look(
            list(self._active),
            num_waiting=len(self._waiting),
            num_slots=shapes.max_batch_size,
            max_sequence_length=shapes.max_sequence_length,
        )

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request.

        Raises:
            RequestError: It asks for what cannot be honoured: an empty or too long prompt, ids outside the vocabulary,
                settings outside their range, a request id in flight, stop strings without a tokenizer.
            OverloadError: Too many requests are waiting.
        """
        check_request(
            request,
            self._engine.shapes,
            vocab_size=self._engine.target.vocab_size,
            has_tokenizer=self._tokenizer is not None,
        )
        if request.request_id in self._in_flight:
            raise RequestError(f"request id `{request.request_id}` is already in flight")
        limit = math.inf if request.deadline_seconds is None else request.deadline_seconds
        self._waiting.put(Waiting(request=request, submitted_at=time.monotonic(), due_at=self._clock() + limit))
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
        chunks: list[GenerationChunk] = []
        if self._cancelled:
            chunks += self._drop("cancelled", lambda request, due_at: request.request_id in self._cancelled)
            self._cancelled.clear()
        now = self._clock()
        if min([self._waiting.earliest_due_at, *(sequence.due_at for sequence in self._active)]) <= now:
            chunks += self._drop("deadline", lambda request, due_at: due_at <= now)
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
            names = ", ".join(f"`{sequence.request.request_id}`" for sequence in self._active)
            logger.exception("a decode step failed, and with it %s", names)
            return self._fail_all(f"{type(error).__name__}: {error}")
        return self._collect()

    def _advance(self) -> None:
        rows = self._plan_rows()
        by_slot = {sequence.slot: sequence for sequence in self._active}
        started_at = self._clock()
        outputs = self._engine.run_target(rows)
        reads = [_take(by_slot[item.slot], item, output) for item, output in zip(rows, outputs, strict=True)]
        self._count_step(reads, self._clock() - started_at)
        self._advance_drafter(reads)

    def _plan_rows(self) -> list[TargetRows]:
        """Every answer's verify rows, and chunks of prompts, as long as the answers can wait for."""
        running = [sequence.verify_rows() for sequence in self._active if not sequence.is_prefilling]
        prompts = [sequence for sequence in self._active if sequence.is_prefilling]
        prompts.sort(key=lambda sequence: -sequence.request.priority)
        budget = self._prompt_budget(running) if prompts else 0
        shares = share_prompt_rows([sequence.num_prompt_left for sequence in prompts], budget)
        return running + [
            sequence.prompt_rows(share) for sequence, share in zip(prompts, shares, strict=True) if share > 0
        ]

    def _prompt_budget(self, running: list[TargetRows]) -> int:
        if not running:
            return PROMPT_ROWS_A_STEP
        num_rows = sum(len(item.token_ids) for item in running)
        # A drafter's pass over n rows that were carried over adds its K - 1 masks, and so n - 2 rows at most.
        num_drafter_rows = sum(max(0, len(item.token_ids) - 2) for item in running)
        max_rows = max(MIN_PROMPT_ROWS, PROMPT_ROWS_A_STEP - num_rows - num_drafter_rows)
        return self._controller.prompt_rows(num_sequences=len(running), num_rows=num_rows, max_rows=max_rows)

    def _advance_drafter(self, reads: list[_Read]) -> None:
        """Let the drafter read what the target read: at once where drafts are wanted, later where that may be never."""
        prompts = [read for read in reads if read.sequence.is_prefilling and read.sequence.draft_tokens]
        for read in prompts:
            self._read_later(read, read.sequence)
        wishing = [read for read in reads if not read.sequence.is_prefilling and self._wants_drafts(read.sequence)]
        if not wishing:
            return
        num_running = sum(not read.sequence.is_prefilling for read in reads)
        counts = self._controller.choose(
            [_wish(read.sequence) for read in wishing],
            num_sequences=num_running,
            other_rows=sum(read.num_accepted + 1 for read in prompts),
        )
        together: list[DraftRows] = []
        by_slot = {read.sequence.slot: read.sequence for read in wishing}
        for read, count in zip(wishing, counts, strict=True):
            if read.sequence.is_scheduled:
                count = min(count, self._engine.shapes.default_drafts(num_running))
            # A fixed K stays what it is to the end of an answer: engines may be tuned for it.
            is_fixed = read.sequence.rates is None and not read.sequence.is_scheduled
            read.sequence.planned_drafts = read.sequence.draft_tokens if is_fixed else count
            if count == 0:
                self._read_later(read, read.sequence)
                continue
            rows = _rows_to_draft(read)
            if len(rows.next_token_ids) > self._engine.shapes.max_draft_tokens + 1:
                # A pass is as wide as its longest member: who has much to read goes alone.
                self._draft([rows], by_slot)
            else:
                together.append(rows)
        if together:
            self._draft_together(together, by_slot)

    def _read_later(self, read: _Read, sequence: Sequence) -> None:
        """Put the drafter's reading off, unless enough has come together for a pass without drafts."""
        waits_long = sequence.planned_drafts == 0 if sequence.is_scheduled else self._is_off(sequence)
        num_rows = sequence.num_unread + read.num_accepted + 1
        row_bytes = 4 * read.output.hidden.shape[1]
        if num_rows < DRAFTER_CHUNK_ROWS or (waits_long and num_rows * row_bytes <= MAX_UNREAD_BYTES):
            sequence.postpone_drafter(read.output.hidden, read.num_accepted + 1)
            return
        # Drafts are of no use here; one slot is the least a pass can fill.
        self._engine.run_drafter([_rows_to_draft(read)], 1)
        self.statistics.num_drafter_passes += 1

    def _is_off(self, sequence: Sequence) -> bool:
        return sequence.rates is not None and self._controller.is_off

    def _draft_together(self, rows: list[DraftRows], by_slot: dict[int, Sequence]) -> None:
        width = max(len(item.next_token_ids) for item in rows)
        width += max(by_slot[item.slot].planned_drafts for item in rows) - 1
        started_at = self._clock()
        self._draft(rows, by_slot)
        self._controller.add_drafter_pass(
            num_sequences=len(rows), num_rows=len(rows) * width, seconds=self._clock() - started_at
        )

    def _draft(self, rows: list[DraftRows], by_slot: dict[int, Sequence]) -> None:
        if not self._engine.drafter.is_parallel:
            self._draft_in_turn(rows, [by_slot[item.slot] for item in rows])
            return
        draft_tokens = max(by_slot[item.slot].planned_drafts for item in rows)
        output = self._engine.run_drafter(rows, draft_tokens)
        self.statistics.num_drafter_passes += 1
        for index, item in enumerate(rows):
            sequence = by_slot[item.slot]
            sequence.take_drafts(self._drafts_of(sequence, output, index).first(sequence.planned_drafts))

    def _draft_in_turn(self, rows: list[DraftRows], sequences: list[Sequence]) -> None:
        """With a plain EAGLE-3 head: a pass for each draft, continued from the draft that was chosen."""
        chosen: dict[int, Drafts] = {}

        def choose(place: int, output: DraftOutput, index: int) -> int:
            draft = self._drafts_of(sequences[place], output, index)
            if not draft.token_ids:
                # Its grammar has no place for another draft; the pass is shared, and what it makes of this one is lost.
                return int(output.token_ids[index, 0])
            chosen[place] = chosen[place].then(draft) if place in chosen else draft
            return draft.token_ids[0]

        counts = [min(sequence.planned_drafts, sequence.useful_drafts) for sequence in sequences]
        self.statistics.num_drafter_passes += draft_in_turn(self._engine, rows, counts, choose)
        for place, sequence in enumerate(sequences):
            sequence.take_drafts(chosen.get(place, NO_DRAFTS), counts[place])

    def _drafts_of(self, sequence: Sequence, output: DraftOutput, index: int) -> Drafts:
        settings = sequence.request.sampling
        if sequence.guide is not None:
            return self._guided_drafts_of(sequence, sequence.guide, output, index)
        if not sequence.request.samples_drafts or settings.temperature == 0.0:
            return Drafts(token_ids=tuple(output.token_ids[index].tolist()))
        vocab_size = self._engine.target.vocab_size
        if output.candidates is not None:
            return propose_candidates(output.candidates, index, vocab_size, settings.temperature, sequence.generator)
        assert output.logits is not None, "an engine gives candidates or logits"
        return propose(
            output.logits[index], self._engine.draft_to_target, vocab_size, settings.temperature, sequence.generator
        )

    def _guided_drafts_of(self, sequence: Sequence, guide: GuideBars, output: DraftOutput, index: int) -> Drafts:
        temperature = sequence.request.sampling.temperature
        is_drawn = sequence.request.samples_drafts and temperature > 0.0
        return guided_drafts(
            guide,
            output,
            index,
            self._engine.draft_to_target,
            max_drafts=sequence.planned_drafts,
            vocab_size=self._engine.target.vocab_size,
            choose=drawn_with(temperature, sequence.generator) if is_drawn else likeliest,
        )

    def _wants_drafts(self, sequence: Sequence) -> bool:
        return sequence.finish_reason is None and sequence.useful_drafts > 0

    def _collect(self) -> list[GenerationChunk]:
        """Chunks of all active sequences; frees the slots of finished ones."""
        chunks = [chunk for sequence in self._active if (chunk := sequence.chunk()) is not None]
        for sequence in self._active:
            if sequence.finish_reason is not None:
                self._slots.give_back(sequence.slot, sequence.leftover)
        self._active = [sequence for sequence in self._active if sequence.finish_reason is None]
        self.statistics.num_output_tokens += sum(len(chunk.token_ids) for chunk in chunks)
        return chunks

    def _admit(self) -> None:
        while len(self._waiting) > 0 and len(self._slots) > 0:
            waiting = self._waiting.take()
            request = waiting.request
            draft_tokens = self._draft_tokens(request)
            taken = self._slots.take(request.prompt_ids, drafts=draft_tokens > 0)
            self.statistics.num_reused_tokens += taken.num_target
            self._active.append(
                Sequence(
                    request,
                    taken=taken,
                    draft_tokens=draft_tokens,
                    rates=self._controller.new_rates() if request.draft_tokens == "auto" else None,
                    is_scheduled=request.draft_tokens is None and bool(self._engine.shapes.draft_schedule),
                    max_sequence_length=self._engine.shapes.max_sequence_length,
                    vocab_size=self._engine.target.vocab_size,
                    tokenizer=self._tokenizer,
                    submitted_at=waiting.submitted_at,
                    due_at=waiting.due_at,
                )
            )

    def _draft_tokens(self, request: GenerationRequest) -> int:
        if request.draft_tokens is None:
            return self._engine.shapes.most_default_drafts
        return request.draft_tokens if isinstance(request.draft_tokens, int) else self._engine.shapes.draft_tokens

    def _drop(self, reason: FinishReason, is_gone: Callable[[GenerationRequest, float], bool]) -> list[GenerationChunk]:
        """End every request that a test of it and its deadline names, waiting or running."""
        for sequence in self._active:
            if is_gone(sequence.request, sequence.due_at):
                sequence.finish(reason)
        never_started = [
            GenerationChunk(request_id=waiting.request.request_id, token_ids=(), text="", finish_reason=reason)
            for waiting in self._waiting.remove(lambda waiting: is_gone(waiting.request, waiting.due_at))
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
            # Nobody knows what the pass that failed has written.
            self._slots.give_back(sequence.slot)
        self._active = []
        return chunks

    def _count_step(self, reads: list[_Read], seconds: float) -> None:
        self.statistics.num_steps += 1
        self.statistics.num_target_passes += 1
        self.statistics.largest_batch = max(self.statistics.largest_batch, len(reads))
        running = [read for read in reads if not read.is_prompt]
        if running:
            self._controller.add_target_pass(
                num_sequences=len(running),
                num_rows=sum(len(read.rows.token_ids) for read in reads),
                num_drafts=sum(len(read.rows.token_ids) - 1 for read in running),
                seconds=seconds,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """What the target has just read of a sequence.

    Attributes:
        sequence: Whose.
        rows: The rows.
        output: What it said about them.
        num_accepted: The last row that stands.
        is_prompt: Whether they are part of its prompt.
    """

    sequence: Sequence
    rows: TargetRows
    output: TargetOutput
    num_accepted: int
    is_prompt: bool


def _take(sequence: Sequence, rows: TargetRows, output: TargetOutput) -> _Read:
    """Keep what the target said: the answer's next tokens, or after the last chunk of a prompt its first one."""
    is_prompt = sequence.is_prefilling
    if is_prompt:
        num_accepted = len(rows.token_ids) - 1
        sequence.num_prompt_read += len(rows.token_ids)
        if not sequence.is_prefilling:
            sequence.take_output(output)
    else:
        num_accepted = sequence.take_output(output)
    return _Read(sequence=sequence, rows=rows, output=output, num_accepted=num_accepted, is_prompt=is_prompt)


def _rows_to_draft(read: _Read) -> DraftRows:
    return read.sequence.rows_to_draft(
        read.output.hidden, start_position=read.rows.start_position, num_accepted=read.num_accepted
    )


def _wish(sequence: Sequence) -> DraftWish:
    return DraftWish(max_drafts=sequence.useful_drafts, rates=sequence.rates, num_unread=sequence.num_unread)
