"""The way from the engine's chunks to one client: piece by piece, or all at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from peagle_trt.decode.request import GenerationChunk, RequestMetrics
from peagle_trt_repo.outputs import AnswerMetrics, answer_arrays, metric_arrays, text_length_array
from peagle_trt_repo.python_backend import ErrorCode, ResponseSender, send_arrays, send_error


@dataclass(slots=True, kw_only=True)
class Answer:
    """One request's answer on its way out. Used by one thread, the response writer.

    Attributes:
        sender: The client.
        is_streaming: One response a chunk; otherwise one for everything.
        returns_text_bytes: Every response says how long its text is.
        on_finish: Called once, after the last response.
        text: Text not yet sent; starts as the prompt where the client wants it back.
        token_ids: Tokens not yet sent.
    """

    sender: ResponseSender
    is_streaming: bool
    returns_text_bytes: bool
    on_finish: Callable[[GenerationChunk], None]
    text: str = ""
    token_ids: list[int] = field(default_factory=list)

    def receive(self, chunk: GenerationChunk) -> None:
        """Takes what one step added and sends what can be sent."""
        self.text += chunk.text
        self.token_ids += chunk.token_ids
        if chunk.finish_reason is not None:
            self._finish(chunk)
        elif self.is_streaming and self.token_ids:
            send_arrays(self.sender, self._take_arrays(), is_last=False)

    def _finish(self, chunk: GenerationChunk) -> None:
        try:
            if chunk.finish_reason == "error":
                send_error(self.sender, _error_code(chunk), chunk.error)
            elif chunk.finish_reason == "deadline" and chunk.metrics is None:
                send_error(self.sender, "UNAVAILABLE", "the request's time was up before its turn came")
            elif chunk.finish_reason == "cancelled":
                send_error(self.sender, "CANCELLED", "the request was cancelled")
            else:
                send_arrays(self.sender, self._take_arrays() | metric_arrays(answer_metrics(chunk)), is_last=True)
        finally:
            self.on_finish(chunk)

    def _take_arrays(self) -> dict[str, NDArray[np.generic]]:
        arrays = answer_arrays(self.text, self.token_ids)
        if self.returns_text_bytes:
            arrays["text_bytes"] = text_length_array(self.text)
        self.text, self.token_ids = "", []
        return arrays


def _error_code(chunk: GenerationChunk) -> ErrorCode:
    if chunk.is_overload:
        return "UNAVAILABLE"
    # A request that was refused never ran, and has no metrics.
    return "INVALID_ARG" if chunk.metrics is None else "INTERNAL"


def answer_metrics(chunk: GenerationChunk) -> AnswerMetrics:
    """The metrics of a whole answer's last chunk, under the names of the outputs."""
    metrics = chunk.metrics
    assert metrics is not None and chunk.finish_reason is not None
    return AnswerMetrics(
        num_input_tokens=metrics.num_prompt_tokens,
        num_output_tokens=metrics.num_output_tokens,
        total_draft_tokens=metrics.num_draft_tokens,
        total_accepted_draft_tokens=metrics.num_accepted_tokens,
        acceptance_rate=_acceptance_rate(metrics),
        acceptance_length=metrics.acceptance_length,
        num_verify_steps=metrics.num_verify_steps,
        # An empty tensor is not what every client reads as empty.
        accepted_by_position=metrics.accepted_by_position or (0,),
        finish_reason=chunk.finish_reason,
    )


def _acceptance_rate(metrics: RequestMetrics) -> float:
    return metrics.num_accepted_tokens / metrics.num_draft_tokens if metrics.num_draft_tokens else 0.0
