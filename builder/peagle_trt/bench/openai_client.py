"""A server behind OpenAI's API as the client of a measurement: ours, or anybody's."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from peagle_trt.bench.clients import ClientAnswer
from peagle_trt.bench.served import OPENAI_PATH, Asking, ServedModel
from peagle_trt.deploy.client import TimeLimit, json_object
from peagle_trt.errors import PeagleError, RequestError
from peagle_trt.spec.build import MAX_DRAFT_TOKENS

if TYPE_CHECKING:
    from peagle_trt.bench.cells import Method

END = b"[DONE]"
"""What the last line of a stream says; one that ends without it was broken off."""
OWN_NAME = "peagle-trt"
"""What our door calls itself in `owned_by`; other servers know no `draft_tokens` and no `prompt_lookup`."""


Shape = TypeVar("Shape")
_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    text: str | None = None
    delta: _Delta | None = None

    @property
    def piece(self) -> str:
        """What it adds to the answer."""
        delta = self.delta or _Delta()
        return (self.text or "") + (delta.reasoning_content or "") + (delta.content or "")


class _Usage(msgspec.Struct, frozen=True):
    completion_tokens: _Count
    prompt_tokens: _Count = 0


class _Event(msgspec.Struct, frozen=True):
    choices: tuple[_Choice, ...] | None = None
    usage: _Usage | None = None


class _Model(msgspec.Struct, frozen=True):
    id: str
    owned_by: str | None = None


class _Models(msgspec.Struct, frozen=True):
    data: tuple[_Model, ...] | None = None


class OpenAiClient:
    """Chats or completions, streamed. Texts come, no ids, and nothing of what was drafted.

    Args:
        host: Of the server.
        port: Its port.
        asking: How it is asked: chats at `/v1/chat/completions`, texts at `/v1/completions`. `ignore_eos` for answers
            that do not end is what vLLM and our door know; of copies only our door is told.
        api_key: Sent as the bearer's token.

    Raises:
        PeagleError: No server answers.
    """

    is_local = False

    def __init__(self, host: str, port: int, asking: Asking, *, api_key: str | None = None) -> None:
        self._patience = asking.patience
        self._address = (host, port)
        self._is_chat = asking.is_chat
        self._settings: dict[str, object] = {} if asking.ends else {"ignore_eos": True}
        self._sampling = asking.sampling
        self._headers = {"Content-Type": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._model, is_own = self._find_model()
        self.served = ServedModel(
            name=self._model,
            method=None,
            max_draft_tokens=MAX_DRAFT_TOKENS,
            takes_draft_tokens=is_own,
            takes_prompt_lookup=is_own,
        )
        # Said either way: the server may have a default of its own.
        self._settings |= {"prompt_lookup": asking.prompt_lookup} if is_own else {}
        self.max_adaptive_drafts = MAX_DRAFT_TOKENS

    def answer(self, prompts: Sequence[str], method: Method, max_tokens: int) -> list[ClientAnswer]:
        """See `Client`."""
        return self._patience.answer_together(
            lambda index, prompt: self._ask(index, prompt, method, max_tokens), prompts, method.concurrency
        )

    def _ask(self, index: int, prompt: str, method: Method, max_tokens: int) -> ClientAnswer:
        body: dict[str, object] = {
            "model": self._model,
            "max_tokens": max_tokens,
            "temperature": self._sampling.temperature,
            "seed": self._sampling.seed + index,
            "stream": True,
            "stream_options": {"include_usage": True},
        } | self._settings
        body |= {"messages": [{"role": "user", "content": prompt}]} if self._is_chat else {"prompt": prompt}
        if self.served.takes_draft_tokens:
            body["draft_tokens"] = method.draft_tokens
        started = time.perf_counter()
        times: list[float] = []
        texts: list[str] = []
        usage: _Usage | None = None
        for event in self._stream(body):
            usage = event.usage or usage
            text = event.choices[0].piece if event.choices else ""
            if text:
                times.append(time.perf_counter() - started)
                texts.append(text)
        if usage is None:
            raise PeagleError("the server told no usage at an answer's end, so its tokens cannot be counted")
        return ClientAnswer(
            # Ids are not told; equal texts stand for equal tokens.
            token_ids=tuple("".join(texts).encode()),
            num_output_tokens=usage.completion_tokens,
            num_verify_steps=0,
            accepted_by_position=(),
            time_to_first_token_seconds=times[0] if times else time.perf_counter() - started,
            num_prompt_tokens=usage.prompt_tokens,
            piece_seconds=tuple(times),
        )

    def _find_model(self) -> tuple[str, bool]:
        connection = self._connect()
        try:
            response = _sent(connection, "GET", f"{OPENAI_PATH}/models", None, self._headers)
            models = _shaped(_document(response), _Models).data
        finally:
            connection.close()
        if not models:
            raise PeagleError(f"the server on port {self._address[1]} serves no model")
        return models[0].id, models[0].owned_by == OWN_NAME

    def _stream(self, body: dict[str, object]) -> Iterator[_Event]:
        path = f"{OPENAI_PATH}/chat/completions" if self._is_chat else f"{OPENAI_PATH}/completions"
        connection, limit = self._connect(), TimeLimit(self._patience.timeout_seconds)
        try:
            response = _sent(connection, "POST", path, json.dumps(body), self._headers, limit)
            if response.status != http.client.OK:
                _document(response)
            for line in response:
                if line.startswith(b"data:") and line[5:].strip() == END:
                    return
                if line.startswith(b"data:"):
                    yield _shaped(_checked(json_object(line[5:], response.status), response.status), _Event)
            raise PeagleError("the server broke an answer off before its end")
        finally:
            limit.lift()
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(*self._address, timeout=self._patience.timeout_seconds)


def _sent(
    connection: http.client.HTTPConnection,
    verb: str,
    path: str,
    body: str | None,
    headers: dict[str, str],
    limit: TimeLimit | None = None,
) -> http.client.HTTPResponse:
    try:
        connection.connect()
        if limit is not None:
            limit.set_on(connection.sock)
        connection.request(verb, path, body, headers)
        return connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        raise PeagleError(f"no server answers on `{connection.host}:{connection.port}`: {error}") from error


def _document(response: http.client.HTTPResponse) -> dict[str, Any]:
    try:
        content = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise PeagleError(f"the server broke an answer off: {type(error).__name__}: {error}") from error
    return _checked(json_object(content, response.status), response.status)


def _shaped(document: dict[str, Any], shape: type[Shape]) -> Shape:
    """What is used of a document, of the types that the API has."""
    try:
        return msgspec.convert(document, shape)
    except msgspec.ValidationError as error:
        raise PeagleError(f"the server's answer is not as OpenAI's API has it: {error}") from error


def _checked(document: dict[str, Any], status: int) -> dict[str, Any]:
    if "error" in document or status != http.client.OK:
        error = document.get("error")
        raise RequestError(
            f"the server answered {status}: {error.get('message') if isinstance(error, dict) else error}"
        )
    return document
