from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from peagle_trt.decode.request import GenerationChunk, GenerationRequest, RequestMetrics, TokenLogProb
from peagle_trt.decode.text import TextTokenizer
from peagle_trt.deploy.hosting.engine_host import EngineHost
from peagle_trt.deploy.hosting.serving_metrics import ServingMetrics
from peagle_trt.deploy.hosting.settings import HostSettings
from peagle_trt.spec import EngineManifest
from peagle_trt_repo.outputs import shaped

from .conftest import TEMPLATE, Published, byte_tokenizer

FINAL = 1
METRICS = RequestMetrics(
    num_prompt_tokens=2,
    num_output_tokens=6,
    num_verify_steps=2,
    num_draft_tokens=10,
    num_accepted_tokens=4,
    accepted_by_position=(2, 2, 0, 0, 0),
    num_drafter_passes=2,
    time_to_first_token_seconds=0.1,
    total_seconds=0.2,
)


class Response:
    def __init__(self, output_tensors: list[Any], error: Any = None) -> None:
        self.arrays = {tensor.name: tensor.array for tensor in output_tensors}
        self.error = error


class Tensor:
    def __init__(self, name: str, array: NDArray[np.generic]) -> None:
        self.name, self.array = name, array


class TritonError(Exception):
    INVALID_ARG, UNAVAILABLE, INTERNAL, CANCELLED = "invalid", "unavailable", "internal", "cancelled"

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class Sender:
    """A client."""

    def __init__(self) -> None:
        self.sent: list[tuple[Response, int]] = []
        self.has_left = False
        self.is_done = threading.Event()

    def send(self, response: Any = None, flags: int = 0) -> None:
        self.sent.append((response, flags))
        if flags == FINAL:
            self.is_done.set()

    def is_cancelled(self) -> bool:
        return self.has_left


class Request:
    """One request of a client."""

    def __init__(self, **arrays: NDArray[np.generic]) -> None:
        self.sender = Sender()
        self._arrays = arrays

    def parameters(self) -> str:
        return ""

    def timeout(self) -> int:
        return 0

    def request_id(self) -> str:
        return "mine"

    def inputs(self) -> list[Any]:
        class Input:
            def __init__(self, name: str, array: NDArray[np.generic]) -> None:
                self.name = lambda: name
                self.as_numpy = lambda: array

        return [Input(name, array) for name, array in self._arrays.items()]

    def get_response_sender(self) -> Sender:
        return self.sender


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
    module = ModuleType("triton_python_backend_utils")
    module.Tensor = Tensor  # type: ignore[attr-defined]
    module.InferenceResponse = Response  # type: ignore[attr-defined]
    module.TritonError = TritonError  # type: ignore[attr-defined]
    module.TRITONSERVER_RESPONSE_COMPLETE_FINAL = FINAL  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", module)


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
    assert sender.is_done.wait(5)
    return sender.sent


def texts(sent: list[tuple[Response, int]]) -> list[str]:
    return [response.arrays["text_output"].item().decode() for response, _ in sent]


STREAM = {"stream": shaped([True], "BOOL")}


def test_a_whole_answer_is_one_response(host: EngineHost, driver: Driver) -> None:
    sender = ask(host)
    driver.emit("abc")
    driver.emit("def", finish_reason="length", metrics=METRICS)
    sent = wait(sender)
    assert (texts(sent), [flags for _, flags in sent]) == (["abcdef"], [FINAL])
    assert sent[0][0].arrays["sequence_length"].item() == 6


def test_a_stream_is_one_response_a_chunk_with_the_final_flag_on_the_last(host: EngineHost, driver: Driver) -> None:
    sender = ask(host, **STREAM)
    driver.emit("abc")
    driver.emit("def", finish_reason="length", metrics=METRICS)
    sent = wait(sender)
    assert (texts(sent), [flags for _, flags in sent]) == (["abc", "def"], [0, FINAL])
    assert "acceptance_length" not in sent[0][0].arrays
    assert sent[1][0].arrays["acceptance_length"].item() == 3.0
    assert sent[1][0].arrays["acceptance_rate"].item() == pytest.approx(0.4)


def test_a_stop_text_is_cut_where_the_engine_cut_it(host: EngineHost, driver: Driver) -> None:
    sender = ask(host, **STREAM, return_text_bytes=shaped([True], "BOOL"))
    driver.emit("é", finish_reason="stop", metrics=METRICS)
    assert wait(sender)[0][0].arrays["text_bytes"].item() == 2


def test_the_prompt_comes_back_where_it_is_asked_for(host: EngineHost, driver: Driver) -> None:
    sender = ask(host, exclude_input_in_output=shaped([False], "BOOL"))
    driver.emit("abc", finish_reason="length", metrics=METRICS)
    assert texts(wait(sender)) == ["hiabc"]


def test_the_models_own_end_tokens_hold_unless_the_client_names_one(host: EngineHost, driver: Driver) -> None:
    ask(host)
    assert driver.last.end_ids == (2,)
    ask(host, end_id=shaped([-1], "INT32"))
    assert driver.last.end_ids == ()


def test_a_named_end_token_replaces_the_models_own(host: EngineHost, driver: Driver) -> None:
    ask(host, end_id=shaped([7], "INT32"))
    assert driver.last.end_ids == (7,)


@pytest.mark.parametrize(("sent", "asked"), [(-1, "auto"), (0, 0), (4, 4)])
def test_k_is_off_fixed_or_chosen_at_every_step(host: EngineHost, driver: Driver, sent: int, asked: object) -> None:
    ask(host, draft_tokens=shaped([sent], "INT32"))
    assert driver.last.draft_tokens == asked


@pytest.mark.parametrize(("default", "asked"), [("build", None), ("auto", "auto")])
def test_a_request_that_does_not_name_k_gets_the_repositorys_default(
    driver: Driver, manifest: EngineManifest, default: str, asked: object
) -> None:
    settings = HostSettings(default_draft_tokens=default)
    tokenizer = TextTokenizer(byte_tokenizer(), TEMPLATE)
    host = EngineHost(driver, manifest, tokenizer, settings=settings, counters=ServingMetrics(None, Published()))
    ask(host)
    host.close()
    assert driver.last.draft_tokens == asked


def test_bad_and_biased_words_are_barred_and_biased_with_and_without_a_space(host: EngineHost, driver: Driver) -> None:
    bias = {
        "embedding_bias_words": shaped([b"ab"], "STRING"),
        "embedding_bias_weights": shaped([2.5], "FP32"),
    }
    ask(host, bad_words=shaped([b"no"], "STRING"), **bias)
    encode = byte_tokenizer().encode
    assert set(driver.last.sampling.bad_words) == {tuple(encode("no").ids), tuple(encode(" no").ids)}
    assert dict(driver.last.sampling.logit_bias) == dict.fromkeys(encode("ab").ids, 2.5)


def test_a_turn_goes_into_the_template(host: EngineHost, driver: Driver) -> None:
    ask(host, apply_chat_template=shaped([True], "BOOL"))
    assert byte_tokenizer().decode(list(driver.last.prompt_ids)) == "<user>hi<assistant>"


def test_a_bad_request_never_reaches_the_engine(host: EngineHost, driver: Driver) -> None:
    response, flags = wait(ask(host, top_p=shaped([2.0], "FP32")))[0]
    assert (response.error.code, flags, driver.requests) == ("invalid", FINAL, {})


def test_a_refusal_of_the_engine_is_the_clients_fault(host: EngineHost, driver: Driver) -> None:
    sender = ask(host)
    driver.emit("", finish_reason="error", error="the prompt is too long")
    assert wait(sender)[0][0].error.code == "invalid"


def test_a_full_line_and_a_time_that_is_up_are_nobodys_fault(host: EngineHost, driver: Driver) -> None:
    busy = ask(host)
    driver.emit("", finish_reason="error", error="7 requests are waiting already", is_overload=True)
    late = ask(host)
    driver.emit("", finish_reason="deadline")
    for sender, message in ((busy, "7 requests are waiting"), (late, "time was up")):
        ((response, flags),) = wait(sender)
        assert (response.error.code, flags) == (TritonError.UNAVAILABLE, FINAL)
        assert message in str(response.error)


def test_a_failure_of_the_engine_is_ours(host: EngineHost, driver: Driver) -> None:
    sender = ask(host)
    driver.emit("", finish_reason="error", error="out of memory", metrics=METRICS)
    assert wait(sender)[0][0].error.code == "internal"


def test_a_client_that_left_is_cancelled(host: EngineHost, driver: Driver) -> None:
    ask(host).has_left = True
    deadline = time.monotonic() + 5
    while not driver.cancelled and time.monotonic() < deadline:
        time.sleep(0.001)
    assert set(driver.cancelled) == {driver.last.request_id}


def test_more_requests_than_may_wait_are_refused_and_room_comes_back(host: EngineHost, driver: Driver) -> None:
    first, _ = ask(host), ask(host)
    assert wait(ask(host))[0][0].error.code == "unavailable"
    request, on_chunk = next(iter(driver.requests.values()))
    on_chunk(
        GenerationChunk(request_id=request.request_id, token_ids=(), text="", finish_reason="stop", metrics=METRICS)
    )
    wait(first)
    deadline = time.monotonic() + 5
    while len(driver.requests) < 3 and time.monotonic() < deadline:
        ask(host)
    assert len(driver.requests) == 3


def test_a_response_that_cannot_be_sent_does_not_stop_the_others(
    host: EngineHost, driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    broken = ask(host)
    broken.send = lambda *_, **__: 1 / 0  # type: ignore[method-assign]
    driver.emit("abc", finish_reason="length", metrics=METRICS)
    sender = ask(host)
    driver.emit("abc", finish_reason="length", metrics=METRICS)
    assert texts(wait(sender)) == ["abc"]
    assert "could not be sent" in caplog.text


def test_log_probabilities_come_in_the_classic_shapes(host: EngineHost, driver: Driver) -> None:
    sender = ask(host, **STREAM, num_top_log_probs=shaped([2], "INT32"))
    assert driver.last.num_top_log_probs == 2
    entries = [TokenLogProb(log_prob=-0.5 - i, top=((7, -0.25), (9, -2.0))) for i in range(5)]
    driver.emit("abc", log_probs=tuple(entries[:3]))
    driver.emit("de", log_probs=tuple(entries[3:]), finish_reason="length", metrics=METRICS)
    first, last = (response.arrays for response, _ in wait(sender))
    assert first["output_log_probs"].tolist() == [[[-0.5, -1.5, -2.5]]]
    assert (first["cum_log_probs"].tolist(), last["cum_log_probs"].tolist()) == ([[-4.5]], [[-12.5]])
    assert last["top_token_ids"].tolist() == [[[7, 9], [7, 9]]]
    assert last["top_log_probs"].dtype == np.float32


def test_the_prompt_that_comes_back_has_no_log_probabilities(host: EngineHost, driver: Driver) -> None:
    extra = {"exclude_input_in_output": [False], "return_log_probs": [True]}
    sender = ask(host, **{name: shaped(values, "BOOL") for name, values in extra.items()})
    driver.emit("a", log_probs=(TokenLogProb(log_prob=-1.0),), finish_reason="length", metrics=METRICS)
    arrays = wait(sender)[0][0].arrays
    assert (arrays["sequence_length"].item(), arrays["output_log_probs"].tolist()) == (3, [[[-1.0]]])


SEVERAL = {"num_return_sequences": shaped([2], "INT32"), "seed": shaped([2**64 - 1], "UINT64")}


def test_every_answer_has_a_seed_of_its_own(host: EngineHost, driver: Driver) -> None:
    ask(host, **SEVERAL)
    assert [request.sampling.seed for request, _ in driver.requests.values()] == [2**64 - 1, 0]


def test_several_whole_answers_are_one_response(host: EngineHost, driver: Driver) -> None:
    sender = ask(host, **SEVERAL, return_text_bytes=shaped([True], "BOOL"))
    first, second = driver.requests
    driver.emit_to(second, "é", log_probs=(), finish_reason="stop", metrics=METRICS)
    driver.emit_to(first, "abc", finish_reason="length", metrics=METRICS)
    ((response, flags),) = wait(sender)
    arrays = response.arrays
    assert flags == FINAL
    assert [text.decode() for text in arrays["text_output"][0]] == ["abc", "é"]
    assert arrays["sequence_length"].tolist() == [[3, 2]]
    assert arrays["output_ids"].shape == (1, 5)
    assert arrays["text_bytes"].tolist() == [[3, 2]]
    assert arrays["finish_reason"].tolist() == [[b"length", b"stop"]]
    assert (arrays["num_output_tokens"].item(), arrays["num_input_tokens"].item()) == (12, 2)
    assert arrays["acceptance_length"].item() == 3.0
    assert arrays["accepted_by_position"].tolist() == [[4, 4, 0, 0, 0]]


def test_streamed_answers_say_whose_piece_it_is_and_end_with_the_last(host: EngineHost, driver: Driver) -> None:
    sender = ask(host, **SEVERAL, **STREAM)
    first, second = driver.requests
    driver.emit_to(second, "x")
    driver.emit_to(first, "abc", finish_reason="length", metrics=METRICS)
    driver.emit_to(second, "y", finish_reason="stop", metrics=METRICS)
    sent = wait(sender)
    assert [response.arrays["sequence_index"].item() for response, _ in sent] == [1, 0, 1]
    assert [flags for _, flags in sent] == [0, 0, FINAL]
    assert sent[-1][0].arrays["num_output_tokens"].item() == METRICS.num_output_tokens


def test_an_answer_that_fails_ends_the_others(host: EngineHost, driver: Driver) -> None:
    sender = ask(host, **SEVERAL, **STREAM)
    first, second = driver.requests
    driver.emit_to(first, "", finish_reason="error", error="out of memory", metrics=METRICS)
    ((response, flags),) = wait(sender)
    assert (response.error.code, flags) == ("internal", FINAL)
    deadline = time.monotonic() + 5
    while second not in driver.cancelled and time.monotonic() < deadline:
        time.sleep(0.001)
    driver.emit_to(second, "late", finish_reason="cancelled", metrics=METRICS)
    assert set(driver.cancelled) == {second}
    assert len(sender.sent) == 1


def test_more_answers_than_may_wait_are_refused_together(host: EngineHost, driver: Driver) -> None:
    response, _ = wait(ask(host, num_return_sequences=shaped([3], "INT32")))[0]
    assert (response.error.code, driver.requests) == ("unavailable", {})


def test_a_clients_time_limit_and_priority_reach_the_engine(host: EngineHost, driver: Driver) -> None:
    sent = {"text_input": shaped([b"hi"], "STRING"), "max_tokens": shaped([6], "INT32")}
    request = Request(**sent, priority=shaped([-3], "INT32"))
    request.timeout = lambda: 250_000  # type: ignore[method-assign]
    host.accept(request)
    assert (driver.last.deadline_seconds, driver.last.priority) == (0.25, 3)


def test_what_a_late_answer_has_so_far_is_an_answer(host: EngineHost, driver: Driver) -> None:
    sender = ask(host)
    driver.emit("abc", finish_reason="deadline", metrics=METRICS)
    arrays = wait(sender)[0][0].arrays
    assert (arrays["text_output"].item(), arrays["finish_reason"].item()) == (b"abc", b"deadline")


def test_stop_tokens_come_beside_the_models_own(host: EngineHost, driver: Driver) -> None:
    ask(host, stop_token_ids=shaped([9, 2], "INT32"))
    assert driver.last.end_ids == (2, 9)


def test_a_grammar_reaches_the_engine(host: EngineHost, driver: Driver) -> None:
    guide = {"guided_decoding_guide_type": b"choice", "guided_decoding_guide": b'["a"]'}
    ask(host, **{name: shaped([text], "STRING") for name, text in guide.items()})
    assert driver.last.guide is not None
    assert np.flatnonzero(driver.last.guide.start().allowed()).tolist() == byte_tokenizer().encode("a").ids


def test_a_bad_grammar_is_the_clients_fault_by_name(host: EngineHost, driver: Driver) -> None:
    guide = {"guided_decoding_guide_type": b"regex", "guided_decoding_guide": b"[a"}
    response, _ = wait(ask(host, **{name: shaped([text], "STRING") for name, text in guide.items()}))[0]
    assert (response.error.code, driver.requests) == ("invalid", {})
    assert "`guided_decoding_guide`" in str(response.error)


def test_biases_of_tokens_come_beside_those_of_words(host: EngineHost, driver: Driver) -> None:
    words = {"embedding_bias_words": shaped([b"a"], "STRING"), "embedding_bias_weights": shaped([2.0], "FP32")}
    ask(host, **words, logit_bias_ids=shaped([7], "INT32"), logit_bias_values=shaped([-1.0], "FP32"))
    assert driver.last.sampling.logit_bias == ((byte_tokenizer().encode("a").ids[0], 2.0), (7, -1.0))
    response, _ = wait(ask(host, logit_bias_ids=shaped([256], "INT32"), logit_bias_values=shaped([1.0], "FP32")))[0]
    assert "`logit_bias_ids`" in str(response.error)


def test_errors_say_their_code_to_those_who_ask(host: EngineHost, driver: Driver) -> None:
    sent = {"text_input": shaped([b"hi"], "STRING"), "max_tokens": shaped([6], "INT32")}
    for more, start in (({"top_p": shaped([2.0], "FP32")}, "INVALID_ARG: `top_p`"), ({}, "INTERNAL: out of")):
        request = Request(**sent, **more)
        request.parameters = lambda: '{"peagle_error_codes": true}'  # type: ignore[method-assign]
        host.accept(request)
        if not more:
            driver.emit("", finish_reason="error", error="out of memory", metrics=METRICS)
        assert str(wait(request.sender)[0][0].error).startswith(start)


def test_every_line_about_a_request_has_its_clients_name(
    host: EngineHost, driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    ask(host, top_p=shaped([2.0], "FP32"))
    sender = ask(host)
    driver.emit("abc", finish_reason="length", metrics=METRICS)
    wait(sender)
    host.close()
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(": ")[0] for line in lines] == ["r1:mine", "r2:mine"]
    assert "length prompt=2 tokens=6" in lines[1]
