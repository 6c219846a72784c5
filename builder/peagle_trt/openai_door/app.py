"""The door as an ASGI application: five addresses, and one form for every error."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from peagle_trt.decode.text import TextTokenizer
from peagle_trt.openai_door.answering import AnswerRequest, AnswerResponse
from peagle_trt.openai_door.dialects import AnswerReader, Dialect, PlainReader
from peagle_trt.openai_door.documents import AnswerHead, ChatDocuments, CompletionDocuments, Documents
from peagle_trt.openai_door.door_metrics import CONTENT_TYPE, DoorMetrics
from peagle_trt.openai_door.engine_stream import EngineClient
from peagle_trt.openai_door.fields import ChatFields, CompletionFields, GenerationFields
from peagle_trt.openai_door.gate import Gate, read_body
from peagle_trt.openai_door.jobs import JobMaker, Work
from peagle_trt.openai_door.limits import AnswerLimit
from peagle_trt.openai_door.reading import read_fields
from peagle_trt.openai_door.refusals import RefusalError
from peagle_trt.openai_door.settings import DoorSettings
from peagle_trt.spec import EngineManifest

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The build behind the door.

    Attributes:
        manifest: Its record.
        tokenizer: Its text side.
        dialect: How its model reads and writes conversations.
        is_plain: Whether an answer's text is its content; stop words may then end it at the server.
        grpc_port: Where its server listens.
        is_alive: Whether server and model process still run.
    """

    manifest: EngineManifest
    tokenizer: TextTokenizer
    dialect: Dialect
    is_plain: bool
    grpc_port: int
    is_alive: Callable[[], bool]


def make_app(served: Served, settings: DoorSettings) -> ASGIApp:
    """The application.

    Args:
        served: What it serves.
        settings: How.
    """
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect
    from starlette.routing import Route

    metrics = DoorMetrics()
    door = _Door(served, settings, metrics)
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", door.chat, methods=["POST"]),
            Route("/v1/completions", door.complete, methods=["POST"]),
            Route("/v1/models", door.models),
            Route("/v1/models/{name:path}", door.model),
            Route("/health", door.health),
            Route("/metrics", door.metrics),
        ],
        exception_handlers={
            RefusalError: _refused,
            HTTPException: _not_found,
            ClientDisconnect: _left,
            Exception: _failed,
        },
        lifespan=door.lifespan,
    )
    return Gate(app, settings, metrics)


class _Door:
    def __init__(self, served: Served, settings: DoorSettings, metrics: DoorMetrics) -> None:
        self._served = served
        self._metrics = metrics
        self._settings = settings
        self._limit = AnswerLimit(settings.max_concurrent_answers)
        self._jobs = JobMaker(served.manifest, served.tokenizer, served.dialect, passes_stop_words=served.is_plain)
        self._token_bytes = served.tokenizer.token_bytes()
        self._engine: EngineClient | None = None
        self._created = int(time.time())

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """The connection to the server lives as long as the application."""
        self._engine = EngineClient(self._served.grpc_port)
        try:
            yield
        finally:
            await self._engine.close()

    async def chat(self, request: Request) -> AnswerResponse:
        """`/v1/chat/completions`."""
        fields = read_fields(await self._body(request), ChatFields)
        work = await _in_thread(self._jobs.chat, fields)
        documents = ChatDocuments(self._token_bytes if work.has_log_probs else None)
        dialect = self._served.dialect
        make_reader = dialect.reader if work.guide_field is None else dialect.guided_reader
        return self._answer(fields, work, documents, "chatcmpl", make_reader)

    async def complete(self, request: Request) -> AnswerResponse:
        """`/v1/completions`."""
        fields = read_fields(await self._body(request), CompletionFields)
        work = await _in_thread(self._jobs.completion, fields)
        documents = CompletionDocuments(self._token_bytes if work.has_log_probs else None)
        return self._answer(fields, work, documents, "cmpl", PlainReader)

    async def models(self, _: Request) -> Response:
        """`/v1/models`."""
        return _json({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """`/v1/models/NAME`."""
        name = request.path_params["name"]
        if name != self._served.manifest.name:
            message = f"the model `{name}` is not served here; this server has `{self._served.manifest.name}`"
            raise RefusalError(message, param="model", status=404, code="model_not_found")
        return _json(self._model())

    async def health(self, _: Request) -> Response:
        """`/health`: whether a request would be answered now."""
        is_ready = self._served.is_alive() and self._engine is not None and await self._engine.is_ready()
        return _json({"status": "ready" if is_ready else "not ready"}, status=200 if is_ready else 503)

    async def metrics(self, _: Request) -> Response:
        """`/metrics`: the door's own, in Prometheus form."""
        from starlette.responses import Response

        return Response(self._metrics.text(), media_type=CONTENT_TYPE)

    def _model(self) -> dict[str, object]:
        manifest = self._served.manifest
        return {
            "id": manifest.name,
            "object": "model",
            "created": self._created,
            "owned_by": "peagle-trt",
            "max_model_len": manifest.shapes.max_sequence_length,
        }

    async def _body(self, request: Request) -> bytes:
        kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        body = await read_body(request, self._settings)
        if kind != "application/json":
            raise RefusalError(
                f"the body is `{kind[:100]}`, expected `application/json`", status=415, code="invalid_type"
            )
        return body

    def _answer(
        self,
        fields: GenerationFields,
        work: Work,
        documents: Documents,
        prefix: str,
        make_reader: Callable[[], AnswerReader],
    ) -> AnswerResponse:
        assert self._engine is not None, "the application has started"
        now = time.time_ns()
        options = fields.stream_options
        request = AnswerRequest(
            work=work,
            head=AnswerHead(answer_id=f"{prefix}-{now:x}", created=now // 10**9, model=fields.model),
            documents=documents,
            make_reader=make_reader,
            is_streaming=bool(fields.stream),
            includes_usage=options is not None and bool(options.include_usage),
        )
        return AnswerResponse(
            request,
            engine=self._engine,
            limit=self._limit,
            write_timeout_seconds=self._settings.write_timeout_seconds,
        )


async def _in_thread(work: Callable[..., Work], fields: GenerationFields) -> Work:
    # A long prompt takes seconds to tokenize, and every other client would wait.
    from starlette.concurrency import run_in_threadpool

    return await run_in_threadpool(work, fields)


def _json(document: object, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    from starlette.responses import Response

    return Response(msgspec.json.encode(document), status, headers, media_type="application/json")


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RefusalError)
    return _json(error.document, status=error.status, headers=error.headers)


async def _not_found(request: Request, error: Exception) -> Response:
    status = int(getattr(error, "status_code", 404))
    message = f"{request.method} {request.url.path} is nothing that this server answers"
    return _json(RefusalError(message, status=status, code="not_found").document, status=status)


async def _left(_: Request, error: Exception) -> Response:
    del error
    # Nobody reads it. Source: nginx's number for it.
    return _json({}, status=499)


async def _failed(request: Request, error: Exception) -> Response:
    logger.error("%s: a fault of the door", request.state.request_id, exc_info=error)
    message = "a fault of this server; its log says more"
    return _json(RefusalError(message, status=500, code="internal_error").document, status=500)
