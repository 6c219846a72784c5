"""The `peagle` model without a server: clients, an engine thread that does as a test tells it, and what joins them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from peagle_trt.decode.request import GenerationChunk, GenerationRequest, RequestMetrics
from peagle_trt.decode.text import TextTokenizer
from peagle_trt.deploy.hosting.engine_host import EngineHost
from peagle_trt.deploy.hosting.serving_metrics import ServingMetrics
from peagle_trt.deploy.hosting.settings import HostSettings
from peagle_trt.spec import EngineManifest
from peagle_trt_repo.outputs import shaped
from tests.support import fake_triton
from tests.support.fake_triton import Request, Response, Sender

from ..conftest import TEMPLATE, Published, byte_tokenizer

METRICS = RequestMetrics(
    num_prompt_tokens=2,
    num_output_tokens=6,
    num_verify_steps=2,
    num_draft_tokens=10,
    num_accepted_tokens=4,
    accepted_by_position=(2, 2, 0, 0, 0),
    num_drafter_passes=2,
    num_looked_up_tokens=1,
    time_to_first_token_seconds=0.1,
    total_seconds=0.2,
)


class Driver:
    """An engine thread that does what the test tells it to."""

    def __init__(self) -> None:
        self.requests: dict[str, tuple[GenerationRequest, Callable[[GenerationChunk], None]]] = {}
        self.cancelled: list[str] = []

    def start(self) -> None: ...

    def close(self) -> None: ...

    def submit(self, request: GenerationRequest, on_chunk: Callable[[GenerationChunk], None]) -> None:
        self.requests[request.request_id] = (request, on_chunk)

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)

    @property
    def last(self) -> GenerationRequest:
        return list(self.requests.values())[-1][0]

    def emit(self, text: str, **fields: Any) -> None:
        self.emit_to(list(self.requests)[-1], text, **fields)

    def emit_to(self, request_id: str, text: str, **fields: Any) -> None:
        request, on_chunk = self.requests[request_id]
        ids = tuple(byte_tokenizer().encode(text).ids)
        on_chunk(GenerationChunk(request_id=request.request_id, token_ids=ids, text=text, **fields))


@pytest.fixture(autouse=True)
def pb_utils(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_triton.install(monkeypatch)


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def host(driver: Driver, manifest: EngineManifest) -> Iterator[EngineHost]:
    settings = HostSettings(max_pending_requests=2, cancellation_check_period_ms=1)
    tokenizer = TextTokenizer(byte_tokenizer(), TEMPLATE)
    host = EngineHost(driver, manifest, tokenizer, settings=settings, counters=ServingMetrics(None, Published()))
    yield host
    host.close()


def ask(host: EngineHost, **extra: NDArray[np.generic]) -> Sender:
    """One request for `hi`."""
    sent = {"text_input": shaped([b"hi"], "STRING"), "max_tokens": shaped([6], "INT32")} | extra
    request = Request(**sent)
    host.accept(request)
    return request.sender


def wait(sender: Sender) -> list[tuple[Response, int]]:
    """What a client got once its answer ended."""
    return sender.wait()


def texts(sent: list[tuple[Response, int]]) -> list[str]:
    return [response.arrays["text_output"].item().decode() for response, _ in sent]


STREAM = {"stream": shaped([True], "BOOL")}
