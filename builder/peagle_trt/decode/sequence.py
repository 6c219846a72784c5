"""One request while it is being decoded: its tokens, its drafts, its counters."""

from __future__ import annotations

import math
import time
from collections import deque
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from peagle_trt.decode.acceptance import NO_DRAFTS, Drafts, verify, verify_greedily
from peagle_trt.decode.acceptance_rates import AcceptanceRates
from peagle_trt.decode.answer import Answer
from peagle_trt.decode.guide import GuideBars
from peagle_trt.decode.log_probs import log_probs_of
from peagle_trt.decode.prompt_lookup import DraftLookup, LookupExperience
from peagle_trt.decode.request import (
    FinishReason,
    GenerationChunk,
    GenerationRequest,
    RequestMetrics,
    TokenLogProb,
)
from peagle_trt.decode.sampling import LogitShaper
from peagle_trt.decode.slots import Leftover, TakenSlot
from peagle_trt.decode.text import TextTokenizer
from peagle_trt.engine.protocol import DraftRows, HiddenRows, TargetOutput, TargetRows, host_rows
from peagle_trt.errors import RequestError

YOUNG_TOKENS = 8
"""Tokens of an answer during which it does not hold up prompts that came before its first one."""


class Sequence:
    """State of one request.

    The target's cache holds every token but the last one, the *pending* token; a step feeds the pending token and the
    drafts, and what the target keeps becomes the tail of `token_ids`.

    Args:
        request: The request.
        taken: Cache it owns, and what that holds of the prompt.
        draft_tokens: K for this request; 0 for none.
        rates: Acceptance of its drafts where K follows it, at most `draft_tokens`; None for a fixed K.
        is_scheduled: K follows the build's schedule, at most `draft_tokens`.
        lookups: What all requests have learned about copied drafts, for a request that wants them.
        max_sequence_length: Tokens of prompt and answer together.
        vocab_size: Vocabulary of the target.
        tokenizer: For text and stop strings, or None.
        submitted_at: Clock when it was submitted, seconds.
        due_at: When its time is up, seconds of the loop's clock.
    """

    def __init__(
        self,
        request: GenerationRequest,
        *,
        taken: TakenSlot,
        draft_tokens: int,
        rates: AcceptanceRates | None = None,
        is_scheduled: bool = False,
        lookups: LookupExperience | None = None,
        max_sequence_length: int,
        vocab_size: int,
        tokenizer: TextTokenizer | None,
        submitted_at: float,
        due_at: float = math.inf,
    ) -> None:
        self.request = request
        self.slot = taken.slot
        self.due_at = due_at
        self.draft_tokens = draft_tokens
        self.planned_drafts = draft_tokens
        self.rates = rates
        self.is_scheduled = is_scheduled
        self.token_ids = list(request.prompt_ids)
        self.num_prompt_read = taken.num_target
        self._num_drafter_read = taken.num_drafter
        self._unread: list[NDArray[np.float32]] = []
        self.drafts = NO_DRAFTS
        self.confidence_K: NDArray[np.float64] | None = None
        self.finish_reason: FinishReason | None = None
        self._error = ""
        self.generator = np.random.default_rng(request.sampling.seed)
        self._limit = min(len(request.prompt_ids) + request.max_tokens, max_sequence_length)
        self.guide = GuideBars(request.guide, request.end_ids) if request.guide is not None else None
        self._shaper = LogitShaper(request.sampling, request.prompt_ids, request.end_ids, vocab_size, self.guide)
        self._takes_argmax = request.sampling.temperature == 0.0 and self._shaper.is_neutral
        is_drawn = request.samples_drafts and request.sampling.temperature > 0.0
        can_copy = request.prompt_lookup and not is_drawn and request.guide is None
        self._lookup = DraftLookup(lookups) if can_copy and lookups is not None else None
        self._answer = Answer(tokenizer.stream() if tokenizer else None, request.stop_strings)
        self._log_probs: deque[TokenLogProb] = deque()
        self._submitted_at = submitted_at
        self._first_token_at: float | None = None
        self._num_outputs = 0
        self._num_verify_steps = 0
        self._num_draft_tokens = 0
        self._num_looked_up = 0
        self._accepted_by_position = [0] * draft_tokens
        self.num_drafter_passes = 0

    @property
    def is_prefilling(self) -> bool:
        """Whether part of the prompt has not been read."""
        return self.num_prompt_read < len(self.request.prompt_ids)

    def gives_way_to(self, other: Sequence) -> bool:
        """Whether another's prompt is read without regard to this answer's pace.

        Of requests that come together none has a claim to a steady stream before the others have begun: while few
        answer, every step reads all weights for few. It ends soon, whatever the others' prompts.
        """
        came_together = self._first_token_at is not None and other._submitted_at <= self._first_token_at
        return came_together and self._num_outputs < YOUNG_TOKENS

    @property
    def num_prompt_left(self) -> int:
        """Tokens of the prompt that have not been read."""
        return len(self.request.prompt_ids) - self.num_prompt_read

    @property
    def useful_drafts(self) -> int:
        """Drafts that could still be accepted: the step adds one token of the target's own."""
        return max(0, min(self.draft_tokens, self._limit - len(self.token_ids) - 1))

    @property
    def leftover(self) -> Leftover:
        """What its slot holds."""
        num_drafter = min(self.num_cached, self._num_drafter_read)
        return Leftover(token_ids=tuple(self.token_ids), num_target=self.num_cached, num_drafter=num_drafter)

    @property
    def num_cached(self) -> int:
        """Tokens of it that the target's cache holds."""
        return self.num_prompt_read if self.is_prefilling else len(self.token_ids) - 1

    @property
    def num_unread(self) -> int:
        """Rows that the target has read and the drafter has not."""
        return sum(len(rows) for rows in self._unread)

    @property
    def num_unread_bytes(self) -> int:
        """Memory that their hidden states take."""
        return sum(rows.nbytes for rows in self._unread)

    def postpone_drafter(self, hidden: HiddenRows, num_rows: int) -> None:
        """Keep the hidden states of rows for a later pass of the drafter."""
        # What an engine hands out is valid until its next pass only.
        self._unread.append(host_rows(hidden)[:num_rows].copy())

    def rows_to_draft(self, hidden: HiddenRows, *, start_position: int, num_accepted: int) -> DraftRows:
        """Everything the drafter has not read, up to the last row that stands.

        Args:
            hidden: Hidden states of the rows the target has just read.
            start_position: Position of the first of them.
            num_accepted: The last of them that stands.
        """
        if self._unread:
            start_position -= self.num_unread
            hidden = np.concatenate([*self._unread, host_rows(hidden)[: num_accepted + 1]])
            num_accepted = hidden.shape[0] - 1
            self._unread = []
        self._num_drafter_read = start_position + num_accepted + 1
        # The drafter's row j carries the token after row j.
        next_token_ids = np.zeros(hidden.shape[0], np.int32)
        first = start_position + 1
        next_token_ids[: num_accepted + 1] = self.token_ids[first : first + num_accepted + 1]
        return DraftRows(
            slot=self.slot,
            next_token_ids=next_token_ids,
            hidden=hidden,
            num_accepted=num_accepted,
            start_position=start_position,
        )

    def take_over(self, other: Sequence) -> int:
        """Go on from what another request has read of the same prompt; its rows must then be copied into this slot.

        Args:
            other: Has read the whole prompt.

        Returns:
            Rows to copy; 0 where this one has read as much itself. The prompt's last row is never among them: it gives
            the logits and the hidden state that nobody kept.
        """
        num_rows = len(self.request.prompt_ids) - 1
        if self.useful_drafts > 0:
            num_rows = min(num_rows, other._num_drafter_read + other.num_unread)
        if num_rows <= self.num_prompt_read:
            return 0
        self.num_prompt_read = num_rows
        self._num_drafter_read = min(num_rows, other._num_drafter_read)
        num_unread = num_rows - self._num_drafter_read
        self._unread = [np.concatenate(other._unread)[:num_unread]] if other._unread and num_unread else []
        return num_rows

    def prompt_rows(self, max_rows: int) -> TargetRows:
        """The next chunk of the prompt; its last row needs logits if it ends the prompt."""
        start = self.num_prompt_read
        chunk = self.request.prompt_ids[start : start + max_rows]
        is_last = start + len(chunk) == len(self.request.prompt_ids)
        return self._rows(chunk, start, int(is_last))

    def verify_rows(self) -> TargetRows:
        """The pending token and the drafts worth verifying."""
        self.drafts = self.drafts.first(self.useful_drafts)
        ids = (self.token_ids[-1], *self.drafts.token_ids)
        return self._rows(ids, len(self.token_ids) - 1, len(ids))

    def take_output(self, output: TargetOutput) -> int:
        """Verify the drafts (none after a prompt) against the target's rows and keep what stands.

        Args:
            output: What the target said about the rows asked for; one more than there are drafts.

        Returns:
            Accepted drafts, n.
        """
        try:
            tokens, num_accepted = self._verify(output)
        except RequestError as error:
            # Its own grammar failed it; the other answers go on.
            self._error = str(error)
            self.finish("error")
            return 0
        log_probs = self._log_probs_of(output, tokens)
        if self.drafts.token_ids:
            self._num_verify_steps += 1
            self._num_draft_tokens += len(self.drafts.token_ids)
            for position in range(num_accepted):
                self._accepted_by_position[position] += 1
        if self._lookup is not None:
            self._num_looked_up += self._lookup.judge(tokens, num_accepted)
        if self.rates is not None and (self.drafts.token_ids or self.confidence_K is not None):
            self.rates.add(len(self.drafts.token_ids), num_accepted, self.confidence_K)
        self.drafts, self.confidence_K = NO_DRAFTS, None
        self._first_token_at = self._first_token_at or time.monotonic()
        num_before = self._num_outputs
        for token, log_prob in zip_longest(tokens, log_probs):
            if self.finish_reason is None:
                self._append(token, log_prob)
        if self.guide is not None and self.guide.is_complete and self._num_outputs == num_before + len(tokens):
            # Whole, and nothing can follow: no end token is waited for.
            self.finish_reason = "stop"
        return num_accepted

    def take_drafts(self, drafts: Drafts, num_passes: int = 1, confidence_K: NDArray[np.float64] | None = None) -> None:
        """Keep what the drafter proposed for the next step, in how many passes, and how sure it is.

        Args:
            drafts: The drafts.
            num_passes: Passes of the drafter.
            confidence_K: See `decode.confidence`, an entry a draft; None where drafts are verified whatever it is.
        """
        if self._lookup is not None:
            token_ids, confidence_K = self._lookup.mix(self.token_ids, drafts.token_ids, confidence_K)
            drafts = Drafts(token_ids=token_ids)
        self.drafts, self.confidence_K = drafts, confidence_K
        self.num_drafter_passes += num_passes
        if self.guide is not None:
            self.guide.undo_drafts()

    def finish(self, reason: FinishReason) -> None:
        """End the answer, unless it has ended."""
        if self.finish_reason is None:
            self.finish_reason = reason

    def chunk(self, error: str = "") -> GenerationChunk | None:
        """What can be sent now, or None when that is nothing."""
        if self.finish_reason is not None:
            self._answer.finish()
        token_ids, text = self._answer.release()
        if not token_ids and not text and self.finish_reason is None:
            return None
        return GenerationChunk(
            request_id=self.request.request_id,
            token_ids=token_ids,
            text=text,
            log_probs=tuple(self._log_probs.popleft() for _ in token_ids) if self._log_probs else (),
            finish_reason=self.finish_reason,
            metrics=self._metrics() if self.finish_reason is not None else None,
            error=error or self._error,
        )

    def _rows(self, token_ids: tuple[int, ...], start: int, num_logit_rows: int) -> TargetRows:
        return TargetRows(
            slot=self.slot,
            token_ids=np.array(token_ids, np.int32),
            start_position=start,
            num_logit_rows=num_logit_rows,
            needs_logits=not self._takes_argmax or self.request.num_top_log_probs is not None,
        )

    def _verify(self, output: TargetOutput) -> tuple[list[int], int]:
        is_end = self.request.end_ids.__contains__ if self.guide is None else self._ends_guided
        if self._takes_argmax and output.greedy_token_ids is not None:
            return verify_greedily(output.greedy_token_ids.tolist(), self.drafts, is_end=is_end)
        return verify(
            output.logits,
            self.drafts,
            settings=self.request.sampling,
            shaper=self._shaper,
            generator=self.generator,
            is_end=is_end,
        )

    def _ends_guided(self, token: int) -> bool:
        assert self.guide is not None
        return token in self.request.end_ids or self.guide.is_complete

    def _log_probs_of(self, output: TargetOutput, tokens: list[int]) -> list[TokenLogProb]:
        num_top = self.request.num_top_log_probs
        return [] if num_top is None else log_probs_of(output.logits, tokens, num_top=num_top)

    def _append(self, token: int, log_prob: TokenLogProb | None) -> None:
        if token in self.request.end_ids:
            self.finish_reason = "stop"
            return
        self.token_ids.append(token)
        self._num_outputs += 1
        self._answer.push(token)
        if log_prob is not None:
            self._log_probs.append(log_prob)
        if self._answer.is_stopped:
            self.finish_reason = "stop"
        elif len(self.token_ids) >= self._limit:
            self.finish_reason = "length"

    def _metrics(self) -> RequestMetrics:
        now = time.monotonic()
        return RequestMetrics(
            num_prompt_tokens=len(self.request.prompt_ids),
            num_output_tokens=self._num_outputs,
            num_verify_steps=self._num_verify_steps,
            num_draft_tokens=self._num_draft_tokens,
            num_accepted_tokens=sum(self._accepted_by_position),
            accepted_by_position=tuple(self._accepted_by_position),
            num_drafter_passes=self.num_drafter_passes,
            num_looked_up_tokens=self._num_looked_up,
            time_to_first_token_seconds=(self._first_token_at or now) - self._submitted_at,
            total_seconds=now - self._submitted_at,
        )
