"""The way from the engine's chunks to one client: piece by piece, or all at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from peagle_trt.decode.request import GenerationChunk, RequestMetrics, TokenLogProb
from peagle_trt_repo.outputs import (
    AnswerMetrics,
    answer_arrays,
    log_prob_arrays,
    metric_arrays,
    shaped,
    text_length_array,
    top_log_prob_arrays,
)
from peagle_trt_repo.python_backend import ErrorCode, ResponseSender, send_arrays, send_error


@dataclass(slots=True)
class Part:
    """One of the answers to a request, as far as it was not sent yet.

    Attributes:
        text: Text; starts as the prompt where the client wants it back.
        token_ids: Tokens.
        log_probs: Of the tokens, where the client wants them; of the answer's alone.
        cumulative: Sum of the log probabilities of all tokens so far, those sent included.
        last: The last chunk, once it is there.
    """

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[TokenLogProb] = field(default_factory=list)
    cumulative: float = 0.0
    last: GenerationChunk | None = None

    def add(self, chunk: GenerationChunk) -> None:
        """Takes what one step added."""
        self.text += chunk.text
        self.token_ids += chunk.token_ids
        self.log_probs += chunk.log_probs
        self.cumulative += sum(entry.log_prob for entry in chunk.log_probs)
        if chunk.finish_reason is not None:
            self.last = chunk

    def clear(self) -> None:
        """Forgets what was sent."""
        self.text, self.token_ids, self.log_probs = "", [], []


@dataclass(slots=True, kw_only=True)
class Reply:
    """All answers to one request on their way out. Used by one thread, the response writer.

    Attributes:
        sender: The client.
        is_streaming: One response a chunk; otherwise one for everything.
        returns_text_bytes: Every response says how long its text is.
        num_top_log_probs: 0 for log probabilities of the tokens, n for those of the n likeliest too; None for none.
        names_error_codes: An error says its code.
        on_finish: Called with the last chunk of every answer, after what was sent of it.
        parts: The answers, in order.
        is_closed: Whether the client has its last response, answers still running or not.
        has_left: Whether the client was found to have left.
        num_chunks: What its answers have received.
        num_looked: How much of that was there when the client was last looked for.
    """

    sender: ResponseSender
    is_streaming: bool
    returns_text_bytes: bool
    num_top_log_probs: int | None = None
    names_error_codes: bool = False
    on_finish: Callable[[GenerationChunk], None]
    parts: list[Part]
    is_closed: bool = False
    has_left: bool = False
    num_chunks: int = 0
    num_looked: int = 0

    def is_unwanted(self) -> bool:
        """Whether nobody waits for what its answers still make. Asks the server, but only once between two chunks.

        To ask is a round trip to another process, and what comes of it comes at a step's end.
        """
        if self.is_closed or self.has_left:
            # Of several answers one may have failed, and the rest are of no use any more.
            return True
        if self.num_chunks == 0 or self.num_chunks != self.num_looked:
            self.num_looked = self.num_chunks
            self.has_left = self.sender.is_cancelled()
        return self.has_left

    def receive(self, index: int, chunk: GenerationChunk) -> None:
        """Takes what one step added to one answer and sends what can be sent."""
        self.num_chunks += 1
        part = self.parts[index]
        part.add(chunk)
        if chunk.finish_reason is not None:
            try:
                self._finish(index, chunk)
            finally:
                self.on_finish(chunk)
        elif self.is_streaming and part.token_ids and not self.is_closed:
            send_arrays(self.sender, self._piece(index), is_last=False)

    def _finish(self, index: int, chunk: GenerationChunk) -> None:
        if self.is_closed:
            return
        metrics = next((part.last.metrics for part in self.parts if part.last and part.last.metrics), None)
        if _never_began(chunk) and metrics is None and any(part.last is None for part in self.parts):
            # An answer without a token if another one began, else a refusal: what it is, the others will tell.
            return
        failure = None if _never_began(chunk) and metrics is not None else _failure(chunk)
        if failure is not None:
            self.is_closed = True
            send_error(self.sender, *failure, names_code=self.names_error_codes)
            return
        assert metrics is not None, "the last chunk of a whole answer carries metrics"
        ended = list(dict.fromkeys([*self._give_up_waiting(metrics), index]))
        chunks = [part.last for part in self.parts if part.last is not None]
        self.is_closed = len(chunks) == len(self.parts)
        if self.is_streaming:
            for each in ended:
                self._send_last_piece(each, is_last=self.is_closed and each == ended[-1])
        elif self.is_closed:
            send_arrays(self.sender, self._arrays(self.parts) | metric_arrays(answer_metrics(chunks)), is_last=True)

    def _give_up_waiting(self, metrics: RequestMetrics) -> list[int]:
        """Makes answers of no tokens of those whose turn never came, and says which these are."""
        waiting = [index for index, part in enumerate(self.parts) if part.last and _never_began(part.last)]
        for index in waiting:
            last = self.parts[index].last
            assert last is not None
            self.parts[index].last = replace(last, metrics=_nothing_done(metrics))
        return waiting

    def _send_last_piece(self, index: int, *, is_last: bool) -> None:
        chunk = self.parts[index].last
        assert chunk is not None
        send_arrays(self.sender, self._piece(index) | metric_arrays(answer_metrics([chunk])), is_last=is_last)

    def _piece(self, index: int) -> dict[str, NDArray[np.generic]]:
        arrays = self._arrays([self.parts[index]])
        if len(self.parts) > 1:
            arrays["sequence_index"] = shaped([index], "INT32")
        self.parts[index].clear()
        return arrays

    def _arrays(self, parts: Sequence[Part]) -> dict[str, NDArray[np.generic]]:
        texts = [part.text for part in parts]
        arrays = answer_arrays(texts, [part.token_ids for part in parts])
        if self.returns_text_bytes:
            arrays["text_bytes"] = text_length_array(texts)
        if self.num_top_log_probs is not None:
            values = [[entry.log_prob for entry in part.log_probs] for part in parts]
            arrays |= log_prob_arrays([part.cumulative for part in parts], values)
        if self.num_top_log_probs:
            arrays |= top_log_prob_arrays([entry.top for part in parts for entry in part.log_probs])
        return arrays


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of a reply, as the engine's thread knows it."""

    reply: Reply
    index: int

    def receive(self, chunk: GenerationChunk) -> None:
        """See `Reply.receive`."""
        self.reply.receive(self.index, chunk)


def _failure(chunk: GenerationChunk) -> tuple[ErrorCode, str] | None:
    """Why there is no answer, or None."""
    if chunk.finish_reason == "error":
        return _error_code(chunk), chunk.error
    if _never_began(chunk):
        return "UNAVAILABLE", "the request's time was up before its turn came"
    if chunk.finish_reason == "cancelled":
        return "CANCELLED", "the request was cancelled"
    return None


def _never_began(chunk: GenerationChunk) -> bool:
    """Whether its time was up while it waited for a slot."""
    return chunk.finish_reason == "deadline" and chunk.metrics is None


def _nothing_done(metrics: RequestMetrics) -> RequestMetrics:
    """Those of an answer that never began, beside another one to the same prompt."""
    return replace(
        metrics,
        num_output_tokens=0,
        num_verify_steps=0,
        num_draft_tokens=0,
        num_accepted_tokens=0,
        accepted_by_position=(0,) * len(metrics.accepted_by_position),
        num_drafter_passes=0,
        num_looked_up_tokens=0,
    )


def _error_code(chunk: GenerationChunk) -> ErrorCode:
    if chunk.is_overload:
        return "UNAVAILABLE"
    # A request that was refused never ran, and has no metrics.
    return "INVALID_ARG" if chunk.metrics is None else "INTERNAL"


def answer_metrics(chunks: Sequence[GenerationChunk]) -> AnswerMetrics:
    """The metrics of whole answers' last chunks, under the names of the outputs."""
    all_metrics = [chunk.metrics for chunk in chunks if chunk.metrics is not None]
    assert len(all_metrics) == len(chunks), "the last chunk of a whole answer carries metrics"
    drafted, accepted = sum(m.num_draft_tokens for m in all_metrics), sum(m.num_accepted_tokens for m in all_metrics)
    verified = sum(m.num_verify_steps for m in all_metrics)
    return AnswerMetrics(
        num_input_tokens=all_metrics[0].num_prompt_tokens,
        num_output_tokens=sum(m.num_output_tokens for m in all_metrics),
        total_draft_tokens=drafted,
        total_accepted_draft_tokens=accepted,
        acceptance_rate=accepted / drafted if drafted else 0.0,
        acceptance_length=1.0 + accepted / verified if verified else 1.0,
        num_verify_steps=verified,
        accepted_by_position=_accepted_by_position(all_metrics),
        total_looked_up_tokens=sum(m.num_looked_up_tokens for m in all_metrics),
        finish_reason=tuple(chunk.finish_reason or "" for chunk in chunks),
    )


def _accepted_by_position(all_metrics: Sequence[RequestMetrics]) -> tuple[int, ...]:
    sums = tuple(sum(counts) for counts in zip(*(m.accepted_by_position for m in all_metrics), strict=True))
    # An empty tensor is not what every client reads as empty.
    return sums or (0,)
