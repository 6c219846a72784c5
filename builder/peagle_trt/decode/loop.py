"""The speculative loop: one drafter pass and one target pass a step, shared by every request in flight.

A plain EAGLE-3 head takes a pass for every draft.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from peagle_trt.decode.acceptance_rates import AcceptanceRates
from peagle_trt.decode.drafting import Drafting, Read
from peagle_trt.decode.load import LoopLoad, look
from peagle_trt.decode.loop_statistics import LoopStatistics
from peagle_trt.decode.prompt_shares import share_prompt_rows
from peagle_trt.decode.request import FinishReason, GenerationChunk, GenerationRequest
from peagle_trt.decode.request_check import check_request
from peagle_trt.decode.sequence import Sequence
from peagle_trt.decode.shared_prompts import SharedPrompts
from peagle_trt.decode.slots import Slots, TakenSlot
from peagle_trt.decode.speculation import MIN_PROMPT_ROWS, SpeculationController
from peagle_trt.decode.text import TextTokenizer
from peagle_trt.decode.waiting_line import Waiting, WaitingLine
from peagle_trt.engine.protocol import Engine, TargetOutput, TargetRows
from peagle_trt.errors import RequestError

logger = logging.getLogger(__name__)

PROMPT_ROWS_A_STEP = 256
"""Rows a step has for prompts, less what verification and the drafter's masks take."""


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
        self._drafting = Drafting(engine, self._controller, self.statistics, clock)
        self._shared_prompts = SharedPrompts(engine, self.statistics)
        self._undrafted: tuple[list[Read], list[Sequence]] = ([], [])
        self._in_flight: set[str] = set()
        self._cancelled: set[str] = set()

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return len(self._waiting) > 0 or bool(self._active)

    @property
    def num_open_slots(self) -> int:
        """Slots that nobody has and nobody waits for."""
        return max(0, len(self._slots) - len(self._waiting))

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

    def draft(self) -> list[GenerationChunk]:
        """Let the drafter read what the target read in the last step; without a call `step` begins with it.

        What that step made ready need not wait for it: whoever hands that on first, and calls this then, has a client
        that asks again at once in time for the next step.

        Returns:
            Last chunks of the requests whose drafts failed.
        """
        (reads, active), self._undrafted = self._undrafted, ([], [])
        if not reads:
            return []
        try:
            self._drafting.advance(reads)
            # An answer of one token has ended by now, and its slot may be another's in the next step.
            self._shared_prompts.hand_over(active)
        except Exception as error:
            return self._ended(self._fail_all(error))
        return []

    def step(self) -> list[GenerationChunk]:
        """Advance every request by one drafter pass and one target pass.

        Returns:
            What became ready to send; the last chunk of a request has a `finish_reason`.
        """
        chunks = self.draft()
        if self._cancelled:
            chunks += self._drop("cancelled", lambda request, due_at: request.request_id in self._cancelled)
            self._cancelled.clear()
        now = self._clock()
        if min([self._waiting.earliest_due_at, *(sequence.due_at for sequence in self._active)]) <= now:
            chunks += self._drop("deadline", lambda request, due_at: due_at <= now)
        chunks += self._admit()
        if self._active:
            chunks += self._verify_and_collect()
        return self._ended(chunks)

    def _ended(self, chunks: list[GenerationChunk]) -> list[GenerationChunk]:
        self._in_flight -= {chunk.request_id for chunk in chunks if chunk.finish_reason is not None}
        return chunks

    def _verify_and_collect(self) -> list[GenerationChunk]:
        try:
            self._verify()
        except Exception as error:
            return self._fail_all(error)
        return self._collect()

    def _verify(self) -> None:
        self._shared_prompts.hand_over(self._active)
        rows = self._plan_rows()
        by_slot = {sequence.slot: sequence for sequence in self._active}
        started_at = self._clock()
        outputs = self._engine.run_target(rows)
        reads = [_take(by_slot[item.slot], item, output) for item, output in zip(rows, outputs, strict=True)]
        self._count_step(reads, self._clock() - started_at)
        self._undrafted = (reads, list(self._active))

    def _plan_rows(self) -> list[TargetRows]:
        """Every answer's verify rows, and chunks of prompts, as long as the answers can wait for."""
        answers = [sequence for sequence in self._active if not sequence.is_prefilling]
        running = [sequence.verify_rows() for sequence in answers]
        prompts = self._shared_prompts.readers(self._active)
        prompts.sort(key=lambda sequence: -sequence.request.priority)
        budget = self._prompt_budget(answers, running, prompts) if prompts else 0
        shares = share_prompt_rows([sequence.num_prompt_left for sequence in prompts], budget)
        return running + [
            sequence.prompt_rows(share) for sequence, share in zip(prompts, shares, strict=True) if share > 0
        ]

    def _prompt_budget(self, answers: list[Sequence], running: list[TargetRows], prompts: list[Sequence]) -> int:
        num_rows = sum(len(item.token_ids) for item in running)
        # A drafter's pass over n rows that were carried over adds its K - 1 masks, and so n - 2 rows at most.
        num_drafter_rows = sum(max(0, len(item.token_ids) - 2) for item in running)
        max_rows = max(MIN_PROMPT_ROWS, PROMPT_ROWS_A_STEP - num_rows - num_drafter_rows)
        if all(answer.gives_way_to(prompt) for answer in answers for prompt in prompts):
            return max_rows
        return self._controller.prompt_rows(num_sequences=len(running), num_rows=num_rows, max_rows=max_rows)

    def _collect(self) -> list[GenerationChunk]:
        """Chunks of all active sequences; frees the slots of finished ones."""
        chunks = [chunk for sequence in self._active if (chunk := sequence.chunk()) is not None]
        for sequence in self._active:
            if sequence.finish_reason is not None:
                is_wanted = self._waiting.has_group(sequence.request.prompt_group)
                self._slots.give_back(sequence.slot, sequence.leftover, is_wanted=is_wanted)
        self._active = [sequence for sequence in self._active if sequence.finish_reason is None]
        self.statistics.num_output_tokens += sum(len(chunk.token_ids) for chunk in chunks)
        return chunks

    def _admit(self) -> list[GenerationChunk]:
        """Give waiting requests the slots there are; last chunks of those that could not begin."""
        refused = []
        while len(self._waiting) > 0 and len(self._slots) > 0:
            waiting = self._waiting.take()
            request = waiting.request
            draft_tokens = self._draft_tokens(request)
            taken = self._slots.take(request.prompt_ids, drafts=draft_tokens > 0)
            try:
                self._active.append(self._begin(waiting, taken, draft_tokens))
            except Exception as error:
                # A grammar, say, that its library cannot start: no reason to end the others.
                logger.exception("request `%s` could not begin", request.request_id)
                self._slots.give_back(taken.slot)
                refused.append(_refusal(request, f"{type(error).__name__}: {error}"))
            else:
                self.statistics.num_reused_tokens += taken.num_target
        return refused

    def _begin(self, waiting: Waiting, taken: TakenSlot, draft_tokens: int) -> Sequence:
        request = waiting.request
        return Sequence(
            request,
            taken=taken,
            draft_tokens=draft_tokens,
            rates=self._new_rates(request),
            lookups=self._controller.lookups,
            is_scheduled=request.draft_tokens is None and bool(self._engine.shapes.draft_schedule),
            max_sequence_length=self._engine.shapes.max_sequence_length,
            vocab_size=self._engine.target.vocab_size,
            tokenizer=self._tokenizer,
            submitted_at=waiting.submitted_at,
            due_at=waiting.due_at,
        )

    def _new_rates(self, request: GenerationRequest) -> AcceptanceRates | None:
        if request.draft_tokens != "auto":
            return None
        return self._controller.new_rates(prompt_lookup=request.prompt_lookup)

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

    def _fail_all(self, error: Exception) -> list[GenerationChunk]:
        """The boundary to the backend: requests in flight must hear of a failure, whatever it was."""
        names = ", ".join(f"`{sequence.request.request_id}`" for sequence in self._active)
        logger.error("a decode step failed, and with it %s", names, exc_info=error)
        reason = f"{type(error).__name__}: {error}"
        chunks = []
        for sequence in self._active:
            # A sequence that had already finished in this very step still gets its answer.
            sequence.finish("error")
            chunk = sequence.chunk(reason if sequence.finish_reason == "error" else "")
            assert chunk is not None
            chunks.append(chunk)
            # Nobody knows what the pass that failed has written.
            self._slots.give_back(sequence.slot)
        self._active = []
        return chunks

    def _count_step(self, reads: list[Read], seconds: float) -> None:
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


def _take(sequence: Sequence, rows: TargetRows, output: TargetOutput) -> Read:
    """Keep what the target said: the answer's next tokens, or after the last chunk of a prompt its first one."""
    is_prompt = sequence.is_prefilling
    if is_prompt:
        num_accepted = len(rows.token_ids) - 1
        sequence.num_prompt_read += len(rows.token_ids)
        if not sequence.is_prefilling:
            sequence.take_output(output)
    else:
        num_accepted = sequence.take_output(output)
    return Read(sequence=sequence, rows=rows, output=output, num_accepted=num_accepted, is_prompt=is_prompt)


def _refusal(request: GenerationRequest, reason: str) -> GenerationChunk:
    return GenerationChunk(request_id=request.request_id, token_ids=(), text="", finish_reason="error", error=reason)
