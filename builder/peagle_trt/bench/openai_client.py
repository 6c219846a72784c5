"""A server behind OpenAI's API as the client of a measurement: ours, or anybody's."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from peagle_trt.bench.clients import GREEDY, ClientAnswer, Sampling
from peagle_trt.bench.served import OPENAI_PATH, ServedModel, answer_together
from peagle_trt.errors import PeagleError, RequestError
from peagle_trt.spec.build import MAX_DRAFT_TOKENS

if TYPE_CHECKING:
    from peagle_trt.bench.cells import Method

REQUEST_TIMEOUT_SECONDS = 600.0
OWN_NAME = "peagle-trt"
"""What our door calls itself in `owned_by`; other servers know no `draft_tokens`."""


class OpenAiClient:
    """Chats or completions, streamed. Texts come, no ids, and nothing of what was drafted.

    Args:
        host: Of the server.
        port: Its port.
        is_chat: Ask `/v1/chat/completions`; otherwise `/v1/completions`.
        ends: Stop at the model's end tokens; otherwise `ignore_eos` is sent, which vLLM and our door know.
        sampling: How tokens are chosen.
        api_key: Sent as the bearer's token.

    Raises:
        PeagleError: No server answers.
    """

    is_local = False

    def __init__(
        self,
        host: str,
        port: int,
        *,
        is_chat: bool,
        ends: bool,
        sampling: Sampling = GREEDY,
        api_key: str | None = None,
    ) -> None:
        self._address = (host, port)
        self._is_chat = is_chat
        self._settings: dict[str, object] = {} if ends else {"ignore_eos": True}
        self._sampling = sampling
        self._headers = {"Content-Type": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._model, is_own = self._find_model()
        self.served = ServedModel(
            name=self._model, method=None, max_draft_tokens=MAX_DRAFT_TOKENS, takes_draft_tokens=is_own
        )
        self.max_adaptive_drafts = MAX_DRAFT_TOKENS

    def answer(self, prompts: Sequence[str], method: Method, max_tokens: int) -> list[ClientAnswer]:
        """See `Client`."""
        return answer_together(
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
        usage: dict[str, Any] = {}
        for event in self._stream(body):
            usage = event.get("usage") or usage
            text = _text(event)
            if text:
                times.append(time.perf_counter() - started)
                texts.append(text)
        if not usage:
            raise PeagleError("the server told no usage at an answer's end, so its tokens cannot be counted")
        return ClientAnswer(
            # Ids are not told; equal texts stand for equal tokens.
            token_ids=tuple("".join(texts).encode()),
            num_output_tokens=int(usage.get("completion_tokens", 0)),
            num_verify_steps=0,
            accepted_by_position=(),
            time_to_first_token_seconds=times[0] if times else time.perf_counter() - started,
            num_prompt_tokens=int(usage.get("prompt_tokens", 0)),
            piece_seconds=tuple(times),
        )

    def _find_model(self) -> tuple[str, bool]:
        connection = self._connect()
        try:
            response = _sent(connection, "GET", f"{OPENAI_PATH}/models", None, self._headers)
            models = _document(response).get("data") or []
        finally:
            connection.close()
        if not models:
            raise PeagleError(f"the server on port {self._address[1]} serves no model")
        return str(models[0]["id"]), models[0].get("owned_by") == OWN_NAME

    def _stream(self, body: dict[str, object]) -> Iterator[dict[str, Any]]:
        path = f"{OPENAI_PATH}/chat/completions" if self._is_chat else f"{OPENAI_PATH}/completions"
        connection = self._connect()
        try:
            response = _sent(connection, "POST", path, json.dumps(body), self._headers)
            if response.status != http.client.OK:
                _document(response)
            for line in response:
                if line.startswith(b"data:") and line[5:].strip() != b"[DONE]":
                    yield _checked(json.loads(line[5:]), response.status)
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(*self._address, timeout=REQUEST_TIMEOUT_SECONDS)


def _sent(
    connection: http.client.HTTPConnection, verb: str, path: str, body: str | None, headers: dict[str, str]
) -> http.client.HTTPResponse:
    try:
        connection.request(verb, path, body, headers)
        return connection.getresponse()
    except OSError as error:
        raise PeagleError(f"no server answers on `{connection.host}:{connection.port}`: {error}") from error


def _document(response: http.client.HTTPResponse) -> dict[str, Any]:
    try:
        document = json.loads(response.read())
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise PeagleError(f"the server answered {response.status}, and no JSON object")
    return _checked(document, response.status)


def _checked(document: dict[str, Any], status: int) -> dict[str, Any]:
    if "error" in document or status != http.client.OK:
        error = document.get("error")
        raise RequestError(
            f"the server answered {status}: {error.get('message') if isinstance(error, dict) else error}"
        )
    return document


def _text(event: dict[str, Any]) -> str:
    choices = event.get("choices") or [{}]
    delta = choices[0].get("delta") or {}
    return (
        str(choices[0].get("text") or "") + str(delta.get("reasoning_content") or "") + str(delta.get("content") or "")
    )
