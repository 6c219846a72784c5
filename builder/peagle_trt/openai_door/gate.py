"""What every request passes first: a name for it, the client's key and rate, and its body within limits."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import secrets
from typing import TYPE_CHECKING

import msgspec

from peagle_trt.openai_door.door_metrics import DoorMetrics
from peagle_trt.openai_door.limits import RequestRate
from peagle_trt.openai_door.refusals import RefusalError
from peagle_trt.openai_door.settings import DoorSettings

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/health"})
"""For probes, which have no key."""
DRAINED_BODIES = 16
"""A body that is too long is read on, up to so many times the limit: a client that still sends would not read why."""
_SANE_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Gate:
    """ASGI middleware around the whole door.

    Args:
        app: What lies behind.
        settings: The door's settings.
        metrics: Where requests are counted.
    """

    def __init__(self, app: ASGIApp, settings: DoorSettings, metrics: DoorMetrics) -> None:
        self._app = app
        self._metrics = metrics
        self._keys = [key.encode() for key in settings.api_keys]
        self._rate = RequestRate(settings.requests_per_minute)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets a request through, or answers in its place."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        request_id = _request_id(headers.get(b"x-request-id", b""))
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        passage = self._metrics.begin(scope["path"])

        async def send_named(message: Message) -> None:
            passage.see(message)
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"x-request-id", request_id.encode())]}
            await send(message)

        try:
            await self._pass(scope, receive, send_named, headers)
        finally:
            passage.end(state.get("num_tokens", 0))
            logger.info(
                "%s: %s %s status=%d tokens=%d ms=%.1f",
                request_id,
                scope["method"],
                ascii(scope["path"])[1:-1],
                passage.status,
                state.get("num_tokens", 0),
                1000 * passage.seconds,
            )

    async def _pass(self, scope: Scope, receive: Receive, send: Send, headers: dict[bytes, bytes]) -> None:
        try:
            if scope["path"] not in OPEN_PATHS:
                self._rate.take(self._client(scope, headers))
        except RefusalError as refusal:
            await refuse(refusal, send)
            return
        await self._app(scope, receive, send)

    def _client(self, scope: Scope, headers: dict[bytes, bytes]) -> str:
        if not self._keys:
            return str((scope.get("client") or ("",))[0])
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        # Every key is compared, so that the time taken says nothing.
        matches = [hmac.compare_digest(key.strip(), known) for known in self._keys]
        if scheme.lower() != b"bearer" or not any(matches):
            raise RefusalError("the API key is missing or wrong", status=401, code="invalid_api_key")
        return f"key {matches.index(True)}"


async def refuse(refusal: RefusalError, send: Send) -> None:
    """Answers with an error."""
    headers = [(b"content-type", b"application/json")]
    headers += [(name.encode(), value.encode()) for name, value in refusal.headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": msgspec.json.encode(refusal.document)})


async def read_body(request: Request, settings: DoorSettings) -> bytes:
    """The whole body.

    Raises:
        RefusalError: It is too long, or too slow.
        starlette.requests.ClientDisconnect: The client left.
    """
    parts: list[bytes] = []
    num_bytes = 0
    try:
        async with asyncio.timeout(settings.body_timeout_seconds):
            async for part in request.stream():
                num_bytes += len(part)
                if num_bytes <= settings.max_body_bytes:
                    parts.append(part)
                elif num_bytes > DRAINED_BODIES * settings.max_body_bytes:
                    break
    except TimeoutError as error:
        raise RefusalError(
            f"the body did not come within {settings.body_timeout_seconds:g} s", status=408, code="timeout"
        ) from error
    if num_bytes > settings.max_body_bytes:
        raise RefusalError(
            f"the body has more than {settings.max_body_bytes} bytes", status=413, code="request_too_large"
        )
    return b"".join(parts)


def _request_id(sent: bytes) -> str:
    text = sent.decode("latin-1")
    return text if _SANE_REQUEST_ID.fullmatch(text) else f"req-{secrets.token_hex(12)}"
