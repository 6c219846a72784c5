"""Served builds as clients of a measurement: Triton over HTTP and gRPC, and the doors that speak OpenAI's API."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import SplitResult, urlsplit

from peagle_trt.bench.clients import GREEDY, ClientAnswer, Sampling
from peagle_trt.bench.patience import REQUEST_TIMEOUT_SECONDS, Patience
from peagle_trt.errors import PeagleError, UsageError
from peagle_trt.spec.build import MAX_DRAFT_TOKENS

if TYPE_CHECKING:
    from peagle_trt.bench.cells import Method

SERVED_AUTO = -1
"""What a client of a served build sends as `draft_tokens` to leave K to the server."""
NO_END_ID = -1
"""An id that no tokenizer yields cannot end an answer."""
OPENAI_PATH = "/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What a server tells of its model.

    Attributes:
        name: Its target, or "" where it does not tell.
        method: Method of its head, or None where it does not tell.
        max_draft_tokens: Largest K it takes.
        takes_draft_tokens: A request can choose K; otherwise all answers come as the server decodes.
        takes_prompt_lookup: A request can ask for copies from the text in place of drafts.
    """

    name: str
    method: str | None
    max_draft_tokens: int
    takes_draft_tokens: bool
    takes_prompt_lookup: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How a server is asked, whatever it speaks.

    Attributes:
        is_chat: Let the server apply the chat template.
        ends: Stop at the model's end tokens.
        sampling: How tokens are chosen.
        prompt_lookup: Ask for copies from the text in place of drafts, of a server that knows them.
        patience: Longest time for a request, and how many may fail.
    """

    is_chat: bool
    ends: bool
    sampling: Sampling
    prompt_lookup: bool
    patience: Patience


class ServedClient(Protocol):
    """A `Client` of a server; see there for the rest."""

    max_adaptive_drafts: int
    is_local: bool
    served: ServedModel

    def answer(self, prompts: Sequence[str], method: Method, max_tokens: int) -> list[ClientAnswer]:
        """See `Client`."""
        ...


def open_served(
    url: str,
    *,
    is_chat: bool,
    ends: bool,
    sampling: Sampling = GREEDY,
    prompt_lookup: bool = False,
    api_key: str | None = None,
    timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
) -> ServedClient:
    """The client that a URL asks for.

    Args:
        url: `http://HOST:PORT` and `grpc://HOST:PORT` of Triton, or `http://HOST:PORT/v1` of an OpenAI door.
        is_chat: Let the server apply the chat template.
        ends: Stop at the model's end tokens.
        sampling: How tokens are chosen.
        prompt_lookup: Ask for copies from the text in place of drafts, of a server that knows them.
        api_key: For an OpenAI door.
        timeout_seconds: Longest time for one request.

    Raises:
        UsageError: The URL is not one of these.
        PeagleError: No server answers there.
    """
    parts, host, port = _parse(url)
    asking = Asking(
        is_chat=is_chat,
        ends=ends,
        sampling=sampling,
        prompt_lookup=prompt_lookup,
        patience=Patience(timeout_seconds),
    )
    if parts.scheme == "grpc" and parts.path in ("", "/"):
        # Triton's library wants the colons of an address in brackets.
        host = f"[{host}]" if ":" in host else host
        return TritonGrpcClient(host, port, asking)
    if parts.scheme not in ("", "http"):
        raise UsageError(f"`{url}`: expected http:// or grpc://", hint="put TLS in front of neither for a measurement")
    if _is_openai(parts):
        from peagle_trt.bench.openai_client import OpenAiClient

        return OpenAiClient(host, port, asking, api_key=api_key)
    if parts.path not in ("", "/"):
        raise UsageError(f"`{url}` has a path", hint=f"`http://HOST:PORT` for Triton, with {OPENAI_PATH} for OpenAI")
    return TritonClient(host, port, asking)


def _parse(url: str) -> tuple[SplitResult, str, int]:
    """A URL with its host and port."""
    try:
        parts = urlsplit(url if "//" in url else f"//{url}")
        # `port` itself raises where the number is none.
        host, port = parts.hostname, parts.port
        # Whoever connects encodes the name so; blanks and control characters it lets through.
        is_name = host is not None and bool(host.encode("idna")) and host.isprintable() and " " not in host
    except ValueError:
        is_name = False
    if not is_name or host is None or port is None:
        raise UsageError(f"`{url}` names no host and port", hint="for example http://127.0.0.1:8000")
    return parts, host, port


def _is_openai(parts: SplitResult) -> bool:
    return parts.path.rstrip("/") == OPENAI_PATH


class TritonClient:
    """A served build, over HTTP.

    Args:
        host: Of the server.
        port: Its HTTP port.
        asking: How it is asked.
    """

    is_local = False

    def __init__(self, host: str, port: int, asking: Asking) -> None:
        from peagle_trt.deploy.client import HttpClient

        self._client = HttpClient(port, host=host, limit_seconds=asking.patience.timeout_seconds)
        self._patience = asking.patience
        self._sampling = asking.sampling
        self.served = _served_model(self._client.model_config())
        self.max_adaptive_drafts = self.served.max_draft_tokens
        self._settings = _settings(self.served, asking)

    def answer(self, prompts: Sequence[str], method: Method, max_tokens: int) -> list[ClientAnswer]:
        """See `Client`."""
        return self._patience.answer_together(
            lambda index, prompt: self._ask(index, prompt, method, max_tokens), prompts, method.concurrency
        )

    def _ask(self, index: int, prompt: str, method: Method, max_tokens: int) -> ClientAnswer:
        payload = _payload(index, prompt, method, max_tokens, self._sampling) | self._settings
        started = time.perf_counter()
        return collect(self._client.generate_stream(payload), started)


class TritonGrpcClient:
    """A served build, over gRPC streams; arguments as for `TritonClient`."""

    is_local = False

    def __init__(self, host: str, port: int, asking: Asking) -> None:
        from peagle_trt.deploy.client import grpc_model_config

        self._patience = asking.patience
        self._host = host
        self._port = port
        self._sampling = asking.sampling
        self.served = _served_model(grpc_model_config(port, host=host, limit_seconds=asking.patience.timeout_seconds))
        self.max_adaptive_drafts = self.served.max_draft_tokens
        self._settings = _settings(self.served, asking)

    def answer(self, prompts: Sequence[str], method: Method, max_tokens: int) -> list[ClientAnswer]:
        """See `Client`."""
        return self._patience.answer_together(
            lambda index, prompt: self._ask(index, prompt, method, max_tokens), prompts, method.concurrency
        )

    def _ask(self, index: int, prompt: str, method: Method, max_tokens: int) -> ClientAnswer:
        from peagle_trt.deploy.client import GrpcStream

        payload = _payload(index, prompt, method, max_tokens, self._sampling) | self._settings | {"stream": True}
        started, limit = time.perf_counter(), self._patience.timeout_seconds
        with GrpcStream(self._port, payload, host=self._host, limit_seconds=limit) as stream:
            return collect(stream, started)


def collect(pieces: Iterable[Mapping[str, Any]], started: float) -> ClientAnswer:
    """Put an answer together from Triton's pieces.

    Args:
        pieces: Outputs of each response, by name.
        started: When the request was sent.

    Raises:
        PeagleError: The last response is missing, which alone carries the counters.
    """
    token_ids: list[int] = []
    piece_seconds, piece_tokens = [], []
    last: Mapping[str, Any] = {}
    for piece in pieces:
        ids = _as_list(piece.get("output_ids"))
        if ids:
            token_ids += ids
            piece_seconds.append(time.perf_counter() - started)
            piece_tokens.append(len(ids))
        # Over gRPC the last response may be the empty one that only says that it is the last.
        if piece.get("num_verify_steps") is not None:
            last = piece
    if not last:
        raise PeagleError("the server broke an answer off: its last response never came")
    return ClientAnswer(
        token_ids=tuple(token_ids),
        num_output_tokens=len(token_ids),
        num_verify_steps=sum(_as_list(last.get("num_verify_steps"))),
        accepted_by_position=tuple(_as_list(last.get("accepted_by_position"))),
        time_to_first_token_seconds=piece_seconds[0] if piece_seconds else time.perf_counter() - started,
        piece_seconds=tuple(piece_seconds),
        piece_tokens=tuple(piece_tokens),
    )


def _settings(served: ServedModel, asking: Asking) -> dict[str, object]:
    # Said either way: the server may have a default of its own.
    lookup = {"prompt_lookup": asking.prompt_lookup} if served.takes_prompt_lookup else {}
    return {"apply_chat_template": asking.is_chat} | lookup | ({} if asking.ends else {"end_id": NO_END_ID})


def _payload(index: int, prompt: str, method: Method, max_tokens: int, sampling: Sampling) -> dict[str, object]:
    draft_tokens = SERVED_AUTO if method.is_adaptive else method.draft_tokens
    payload: dict[str, object] = {"text_input": prompt, "max_tokens": max_tokens, "draft_tokens": draft_tokens}
    if sampling.temperature:
        payload |= {"temperature": sampling.temperature, "seed": sampling.seed + index}
    return payload


def _served_model(config: Mapping[str, Any]) -> ServedModel:
    parameters = config.get("parameters")
    entries = parameters.items() if isinstance(parameters, dict) else ()
    texts = {name: str(entry.get("string_value", "")) for name, entry in entries if isinstance(entry, dict)}
    largest = texts.get("max_draft_tokens", "")
    inputs = config.get("input")
    names = {entry.get("name") for entry in inputs if isinstance(entry, dict)} if isinstance(inputs, list) else set()
    return ServedModel(
        name=texts.get("target", ""),
        method=texts.get("method") or None,
        max_draft_tokens=int(largest) if largest.isdecimal() else MAX_DRAFT_TOKENS,
        takes_draft_tokens=True,
        takes_prompt_lookup="prompt_lookup" in names,
    )


def _as_list(value: object) -> list[int]:
    """Triton's JSON writes a tensor of one element as a scalar."""
    if value is None:
        return []
    items = value if isinstance(value, list) else [value]
    try:
        return [int(str(item)) for item in items]
    except ValueError as error:
        raise PeagleError("the server's answer is not as Triton has it: a count or an id is no whole number") from error
