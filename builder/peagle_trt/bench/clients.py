"""What a measurement talks to: a build in this process, or a served one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from peagle_trt.decode.loop import DecodeLoop
from peagle_trt.decode.session import LoadedBuild
from peagle_trt.errors import PeagleError, UsageError

if TYPE_CHECKING:
    from peagle_trt.bench.measure import Method


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAnswer:
    """One answer.

    Attributes:
        token_ids: Its tokens.
        num_output_tokens: How many.
        num_verify_steps: Steps that verified drafts.
        accepted_by_position: Accepted drafts at each position.
        time_to_first_token_seconds: Submission to first token.
    """

    token_ids: tuple[int, ...]
    num_output_tokens: int
    num_verify_steps: int
    accepted_by_position: tuple[int, ...]
    time_to_first_token_seconds: float


class Client(Protocol):
    """Answers prompts with a method."""

    def answer(self, prompts: Sequence[str], method: Method, max_tokens: int) -> list[ClientAnswer]:
        """Answer all, `method.concurrency` at a time; in the order of the prompts."""
        ...


class InProcessClient:
    """A build in this process.

    Args:
        loaded: The build.
        is_chat: Put prompts into the chat template.
        ends: Stop at the model's end tokens; otherwise every answer has `max_tokens`.
        baseline: Another build of the same target, which answers with the method of its own head.
    """

    def __init__(self, loaded: LoadedBuild, *, is_chat: bool, ends: bool, baseline: LoadedBuild | None = None) -> None:
        self._loaded = loaded
        self._baseline = baseline
        self._is_chat = is_chat
        self._ends = ends

    def answer(self, prompts: Sequence[str], method: Method, max_tokens: int) -> list[ClientAnswer]:
        """See `Client`. A prompt is submitted when one before it ends, so that the batch stays full."""
        is_baseline = self._baseline is not None and method.name == self._baseline.manifest.drafter.method
        loaded = self._baseline if self._baseline is not None and is_baseline else self._loaded
        loop = DecodeLoop(loaded.engine, None)
        waiting = deque(enumerate(prompts))
        answers: dict[str, ClientAnswer] = {}
        tokens: dict[str, list[int]] = {}
        for _ in range(method.concurrency):
            self._submit_next(loop, waiting, method, max_tokens)
        while loop.has_work:
            for chunk in loop.step():
                tokens.setdefault(chunk.request_id, []).extend(chunk.token_ids)
                if chunk.finish_reason == "error":
                    raise PeagleError(f"a decode step failed: {chunk.error}")
                if chunk.metrics is not None:
                    answers[chunk.request_id] = ClientAnswer(
                        token_ids=tuple(tokens[chunk.request_id]),
                        num_output_tokens=chunk.metrics.num_output_tokens,
                        num_verify_steps=chunk.metrics.num_verify_steps,
                        accepted_by_position=chunk.metrics.accepted_by_position,
                        time_to_first_token_seconds=chunk.metrics.time_to_first_token_seconds,
                    )
                    self._submit_next(loop, waiting, method, max_tokens)
        return [answers[str(index)] for index in range(len(prompts))]

    def _submit_next(self, loop: DecodeLoop, waiting: deque[tuple[int, str]], method: Method, max_tokens: int) -> None:
        if not waiting:
            return
        index, prompt = waiting.popleft()
        ask = self._loaded.chat_request if self._is_chat else self._loaded.request
        request = ask(prompt, max_tokens=max_tokens, request_id=str(index))
        end_ids = request.end_ids if self._ends else ()
        loop.submit(replace(request, draft_tokens=method.draft_tokens, end_ids=end_ids))


class TritonClient:
    """A served build, over HTTP.

    Args:
        url: `http://HOST:PORT` of the server.
        is_chat: Let the server apply the chat template.
        ends: Stop at the model's end tokens.

    Raises:
        UsageError: The URL is not one.
    """

    def __init__(self, url: str, *, is_chat: bool, ends: bool) -> None:
        from peagle_trt.deploy.client import HttpClient

        parts = urlsplit(url if "//" in url else f"//{url}")
        if parts.hostname is None or parts.port is None:
            raise UsageError(f"`{url}` names no host and port", hint="for example http://127.0.0.1:8000")
        self._client = HttpClient(parts.port, host=parts.hostname)
        # An id that no tokenizer yields cannot end an answer.
        self._settings: dict[str, object] = {"apply_chat_template": is_chat} | ({} if ends else {"end_id": -1})

    def answer(self, prompts: Sequence[str], method: Method, max_tokens: int) -> list[ClientAnswer]:
        """See `Client`."""
        with ThreadPoolExecutor(method.concurrency) as pool:
            return list(pool.map(lambda prompt: self._ask(prompt, method, max_tokens), prompts))

    def _ask(self, prompt: str, method: Method, max_tokens: int) -> ClientAnswer:
        payload = {"text_input": prompt, "max_tokens": max_tokens, "draft_tokens": method.draft_tokens} | self._settings
        started, first, tokens = time.perf_counter(), None, []
        piece: dict[str, object] = {}
        for piece in self._client.generate_stream(payload):
            first = first or time.perf_counter()
            tokens.extend(_as_list(piece.get("output_ids")))
        return ClientAnswer(
            token_ids=tuple(tokens),
            num_output_tokens=len(tokens),
            num_verify_steps=sum(_as_list(piece.get("num_verify_steps"))),
            accepted_by_position=tuple(_as_list(piece.get("accepted_by_position"))),
            time_to_first_token_seconds=(first or time.perf_counter()) - started,
        )


def _as_list(value: object) -> list[int]:
    """Triton's JSON writes a tensor of one element as a scalar."""
    if value is None:
        return []
    return [int(item) for item in value] if isinstance(value, list) else [int(str(value))]
