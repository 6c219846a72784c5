"""Writes one request's answer, whole or as server-sent events, and gives it up when the client leaves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from peagle_trt.openai_door.dialects import AnswerReader
from peagle_trt.openai_door.documents import AnswerHead, Choice, Document, Documents, envelope, usage
from peagle_trt.openai_door.engine_stream import Answers, EngineClient
from peagle_trt.openai_door.jobs import Work
from peagle_trt.openai_door.limits import AnswerLimit
from peagle_trt.openai_door.refusals import RefusalError
from peagle_trt_repo.inputs import GUIDE

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

logger = logging.getLogger(__name__)

_JSON = [(b"content-type", b"application/json")]
_EVENTS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Or a proxy would hold the pieces back. Source: nginx, `proxy_buffering`.
    (b"x-accel-buffering", b"no"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRequest:
    """What is to be answered, and in which form.

    Attributes:
        work: What the server is asked.
        head: What all documents share.
        documents: Their form.
        make_reader: Tells the answer of one choice apart.
        is_streaming: Piece by piece.
        includes_usage: A stream ends with the tokens it took.
    """

    work: Work
    head: AnswerHead
    documents: Documents
    make_reader: Callable[[], AnswerReader]
    is_streaming: bool
    includes_usage: bool


class AnswerResponse:
    """An ASGI application that writes one answer.

    Args:
        request: What is to be answered.
        engine: The way to the server.
        limit: How many answers may be written at once.
        write_timeout_seconds: How long a client may leave a piece unread.
    """

    def __init__(
        self, request: AnswerRequest, *, engine: EngineClient, limit: AnswerLimit, write_timeout_seconds: float
    ) -> None:
        self._request = request
        self._engine = engine
        self._limit = limit
        self._write_timeout_seconds = write_timeout_seconds
        count = len(request.work.jobs) * request.work.num_choices
        self._choices = [Choice() for _ in range(count)]
        self._readers = [request.make_reader() for _ in range(count)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers; returns early when nobody waits any more."""
        writer = _Writer(send, self._write_timeout_seconds)
        await _while_connected(receive, self._answer_or_refuse(scope, writer))

    async def _answer_or_refuse(self, scope: Scope, writer: _Writer) -> None:
        try:
            with self._limit.room_for(len(self._choices)):
                await self._answer(scope, writer)
        except TimeoutError:
            logger.warning("%s: the client reads too slowly and was given up", scope["state"]["request_id"])
        except RefusalError as refusal:
            await writer.refuse(_in_clients_words(refusal, self._request.work.guide_field))

    async def _answer(self, scope: Scope, writer: _Writer) -> None:
        request = self._request
        work = request.work
        async with Answers(
            self._engine,
            work.jobs,
            scope["state"]["request_id"],
            num_choices=work.num_choices,
            max_seconds=work.max_seconds,
        ) as answers:
            async for index, piece in answers.pieces():
                read = self._readers[index].read(piece.text, piece.token_ids)
                choice = self._choices[index]
                choice.add(piece, read)
                if request.is_streaming:
                    # Only now is it known that the answer is no refusal, which has a status of its own.
                    if not writer.has_started:
                        await self._open(writer)
                    await self._write(writer, request.documents.piece(index, read, piece))
                    if choice.finish_reason is not None:
                        await self._write(writer, request.documents.ending(index, choice))
        scope["state"]["num_tokens"] = sum(choice.num_tokens for choice in self._choices)
        await (self._close(writer) if request.is_streaming else self._write_whole(writer))

    async def _open(self, writer: _Writer) -> None:
        await writer.start(200, _EVENTS)
        for index in range(len(self._choices)):
            await self._write(writer, self._request.documents.opening(index))

    async def _write(self, writer: _Writer, choice: Document | None) -> None:
        if choice is None:
            return
        # A stream with usage carries the field everywhere, empty but on the last piece.
        more: Document = {"usage": None} if self._request.includes_usage else {}
        await writer.event(envelope(self._request.head, self._request.documents.piece_object, [choice], **more))

    async def _close(self, writer: _Writer) -> None:
        request = self._request
        if request.includes_usage:
            total = usage(self._choices, request.work.num_prompt_tokens)
            await writer.event(envelope(request.head, request.documents.piece_object, [], usage=total))
        await writer.end(b"data: [DONE]\n\n")

    async def _write_whole(self, writer: _Writer) -> None:
        request = self._request
        choices = [request.documents.whole(index, choice) for index, choice in enumerate(self._choices)]
        total = usage(self._choices, request.work.num_prompt_tokens)
        await writer.start(200, _JSON)
        await writer.end(
            msgspec.json.encode(envelope(request.head, request.documents.whole_object, choices, usage=total))
        )


def _in_clients_words(refusal: RefusalError, guide_field: str | None) -> RefusalError:
    """What the server says about its own input, said about the client's field."""
    if guide_field is None or f"`{GUIDE}`" not in refusal.message:
        return refusal
    message = refusal.message.replace(f"`{GUIDE}`", f"`{guide_field}`")
    return RefusalError(message, param=guide_field, status=refusal.status, code=refusal.code)


class _Writer:
    """The way to the client."""

    def __init__(self, send: Send, timeout_seconds: float) -> None:
        self._send = send
        self._timeout_seconds = timeout_seconds
        self.has_started = False

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """The status line and the headers."""
        self.has_started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def event(self, document: Document) -> None:
        """A server-sent event."""
        await self._body(b"data: " + msgspec.json.encode(document) + b"\n\n", more=True)

    async def end(self, body: bytes) -> None:
        """The rest."""
        await self._body(body, more=False)

    async def refuse(self, refusal: RefusalError) -> None:
        """An error in place of the answer, or where the answer has begun, as its last event."""
        if self.has_started:
            await self.event(refusal.document)
            await self.end(b"")
            return
        headers = [(name.encode(), value.encode()) for name, value in refusal.headers.items()]
        await self.start(refusal.status, _JSON + headers)
        await self.end(msgspec.json.encode(refusal.document))

    async def _body(self, body: bytes, *, more: bool) -> None:
        async with asyncio.timeout(self._timeout_seconds):
            await self._send({"type": "http.response.body", "body": body, "more_body": more})


async def _while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        has_answered = working.done()
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
    if has_answered:
        working.result()
    else:
        logger.info("the client left before its answer was whole")


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
