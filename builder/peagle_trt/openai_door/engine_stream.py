"""Answers from the served `peagle` model over gRPC; an answer that nobody waits for is cancelled there."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from peagle_trt.deploy.client import grpc_inputs, grpc_outputs
from peagle_trt.deploy.ports import LOOPBACK
from peagle_trt.openai_door.log_probs import TokenEntry
from peagle_trt.openai_door.refusals import RefusalError, too_many
from peagle_trt_repo.request_parameters import ERROR_CODES

MODEL = "peagle"
QUEUE_LENGTH = 64
"""Pieces read ahead of a slow client, over all its choices."""
READY_TIMEOUT_SECONDS = 5.0
FULL_RETRY_SECONDS = 1.0
MICROSECONDS = 1_000_000
_ENDED = object()
_NAMED_CODE = re.compile(r"([A-Z_]+): (.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePiece:
    """What the server sent at once.

    Attributes:
        text: Text.
        token_ids: Tokens.
        finish_reason: `stop`, `length` or `deadline` on the last piece.
        num_output_tokens: Tokens of the whole answer; on the last piece.
        entries: How likely the tokens were, where that was asked for.
        index: Whose it is, among the answers to one request.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None
    num_output_tokens: int
    entries: tuple[TokenEntry, ...] = ()
    index: int = 0


class EngineClient:
    """The way to the server. Made and used inside one event loop.

    Args:
        port: gRPC port of the server.
    """

    def __init__(self, port: int) -> None:
        import tritonclient.grpc.aio as grpc_client

        self._client = grpc_client.InferenceServerClient(f"{LOOPBACK}:{port}")

    async def is_ready(self) -> bool:
        """Whether the server would take a request now."""
        try:
            ready = self._client.is_model_ready(MODEL, client_timeout=READY_TIMEOUT_SECONDS)
            return bool(await ready)
        except Exception:
            # The client library has no common class for what a server that is gone looks like.
            return False

    async def close(self) -> None:
        """Closes the connection."""
        await self._client.close()

    async def answer(
        self, inputs: Mapping[str, object], request_id: str, max_seconds: float | None = None
    ) -> AsyncGenerator[EnginePiece, None]:
        """The pieces of one answer; cancelled at the server when the iteration ends early.

        Args:
            inputs: Inputs of the model.
            request_id: Name of the request.
            max_seconds: When the answer ends as it is; None for any time.

        Raises:
            RefusalError: The server refused the request, is full, or failed.
        """

        async def once() -> AsyncIterator[dict[str, Any]]:
            yield {
                "model_name": MODEL,
                "inputs": grpc_inputs(inputs),
                "request_id": request_id,
                "timeout": None if max_seconds is None else max(1, round(max_seconds * MICROSECONDS)),
                "enable_empty_final_response": True,
                "parameters": {ERROR_CODES: True},
            }

        # The header `triton_grpc_error` would give errors a status. With it, of a few dozen refused requests whose
        # client ends its call, one takes tritonserver 2.51 down by signal 11. Source: measured; the race of
        # triton-inference-server/server#8034.
        call = self._client.stream_infer(once())
        try:
            async for result, error in call:
                if error is not None:
                    raise _refusal(*_code_and_message(str(error)))
                piece = grpc_outputs(result)
                yield _piece(piece)
                if piece["is_final"]:
                    return
        except Exception as error:
            raise _translated(error) from error
        finally:
            call.cancel()


class Answers:
    """Several answers written at the same time, their pieces in the order of arrival; leave it to cancel them.

    Args:
        client: The way to the server.
        jobs: Inputs of every request.
        num_choices: Answers to each of them.
        request_id: Their common name.
        max_seconds: When they end as they are; None for any time.
    """

    def __init__(
        self,
        client: EngineClient,
        jobs: Sequence[Mapping[str, object]],
        request_id: str,
        *,
        num_choices: int = 1,
        max_seconds: float | None = None,
    ) -> None:
        self._client = client
        self._num_choices = num_choices
        self._jobs = jobs
        self._max_seconds = max_seconds
        self._request_id = request_id
        self._queue: asyncio.Queue[Any] = asyncio.Queue(QUEUE_LENGTH)
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._pump(index)) for index in range(len(self._jobs))]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def pieces(self) -> AsyncIterator[tuple[int, EnginePiece]]:
        """Which answer, and its next piece.

        Raises:
            RefusalError: One of them failed.
        """
        running = len(self._tasks)
        while running:
            item = await self._queue.get()
            if isinstance(item, Exception):
                raise item
            if item is _ENDED:
                running -= 1
            else:
                yield item

    async def _pump(self, index: int) -> None:
        pieces = self._client.answer(self._jobs[index], f"{self._request_id}-{index}", self._max_seconds)
        try:
            # A generator that is left alone closes when it is collected, and the server would go on until then.
            async with contextlib.aclosing(pieces):
                async for piece in pieces:
                    await self._queue.put((index * self._num_choices + piece.index, piece))
            await self._queue.put(_ENDED)
        except Exception as error:
            await self._queue.put(error)


def _piece(piece: Mapping[str, Any]) -> EnginePiece:
    token_ids = piece.get("output_ids", [])
    return EnginePiece(
        text=str(piece.get("text_output") or ""),
        token_ids=tuple(token_ids),
        finish_reason=piece.get("finish_reason"),
        num_output_tokens=int(piece.get("num_output_tokens") or 0),
        entries=_entries(piece),
        index=int(piece.get("sequence_index") or 0),
    )


def _entries(piece: Mapping[str, Any]) -> tuple[TokenEntry, ...]:
    token_ids, values = piece.get("output_ids", []), piece.get("output_log_probs")
    if values is None:
        return ()
    top = list(zip(piece.get("top_token_ids", ()), piece.get("top_log_probs", ()), strict=True))
    num_top = len(top) // max(1, len(token_ids))
    return tuple(
        TokenEntry(token_id=token_id, log_prob=value, top=tuple(top[index * num_top : (index + 1) * num_top]))
        for index, (token_id, value) in enumerate(zip(token_ids, values, strict=True))
    )


def _code_and_message(text: str) -> tuple[str, str]:
    """An error of the `peagle` model begins with its code; one of the server itself does not."""
    named = _NAMED_CODE.fullmatch(text)
    return (named.group(1), named.group(2)) if named else ("", text)


def _translated(error: Exception) -> Exception:
    """The client library's exceptions, and gRPC's that it lets through, as refusals; ours as they are."""
    if isinstance(error, RefusalError):
        return error
    code = getattr(error, "code", None)
    if not callable(code):
        return error
    return _refusal(str(getattr(code(), "name", "")), str(getattr(error, "details", lambda: error)()))


def _refusal(code: str, message: str) -> RefusalError:
    if code in ("INVALID_ARG", "INVALID_ARGUMENT"):
        return RefusalError(message, code="invalid_value")
    if "time was up" in message:
        return RefusalError(message, param="max_time", status=504, code="deadline_exceeded")
    if "are pending" in message:
        return too_many(message, FULL_RETRY_SECONDS)
    if code == "UNAVAILABLE":
        return RefusalError("the model server does not answer", status=503, code="server_unavailable")
    return RefusalError(f"the model server failed: {message}", status=500, code="server_failed")
