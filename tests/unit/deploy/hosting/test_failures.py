"""Who is told what went wrong, and that the others go on."""

from __future__ import annotations

import time

import pytest

from peagle_trt.decode.request import GenerationChunk
from peagle_trt.deploy.hosting.answer import Part, Reply
from peagle_trt.deploy.hosting.engine_host import EngineHost
from peagle_trt_repo.outputs import shaped
from tests.support.fake_triton import FINAL, Request, Sender, TritonError

from .conftest import METRICS, Driver, ask, texts, wait


def test_a_bad_request_never_reaches_the_engine(host: EngineHost, driver: Driver) -> None:
    response, flags = wait(ask(host, top_p=shaped([2.0], "FP32")))[0]
    assert (response.error().code(), flags, driver.requests) == ("invalid", FINAL, {})


def test_a_refusal_of_the_engine_is_the_clients_fault(host: EngineHost, driver: Driver) -> None:
    sender = ask(host)
    driver.emit("", finish_reason="error", error="the prompt is too long")
    assert wait(sender)[0][0].error().code() == "invalid"


def test_a_full_line_and_a_time_that_is_up_are_nobodys_fault(host: EngineHost, driver: Driver) -> None:
    busy = ask(host)
    driver.emit("", finish_reason="error", error="7 requests are waiting already", is_overload=True)
    late = ask(host)
    driver.emit("", finish_reason="deadline")
    for sender, message in ((busy, "7 requests are waiting"), (late, "time was up")):
        ((response, flags),) = wait(sender)
        assert (response.error().code(), flags) == (TritonError.UNAVAILABLE, FINAL)
        assert message in str(response.error())


def test_a_failure_of_the_engine_is_ours(host: EngineHost, driver: Driver) -> None:
    sender = ask(host)
    driver.emit("", finish_reason="error", error="out of memory", metrics=METRICS)
    assert wait(sender)[0][0].error().code() == "internal"


def test_a_client_that_left_is_cancelled(host: EngineHost, driver: Driver) -> None:
    ask(host).has_left = True
    deadline = time.monotonic() + 5
    while not driver.cancelled and time.monotonic() < deadline:
        time.sleep(0.001)
    assert set(driver.cancelled) == {driver.last.request_id}


def test_more_requests_than_may_wait_are_refused_and_room_comes_back(host: EngineHost, driver: Driver) -> None:
    first, _ = ask(host), ask(host)
    assert wait(ask(host))[0][0].error().code() == "unavailable"
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


def test_a_bad_grammar_is_the_clients_fault_by_name(host: EngineHost, driver: Driver) -> None:
    guide = {"guided_decoding_guide_type": b"regex", "guided_decoding_guide": b"[a"}
    response, _ = wait(ask(host, **{name: shaped([text], "STRING") for name, text in guide.items()}))[0]
    assert (response.error().code(), driver.requests) == ("invalid", {})
    assert "`guided_decoding_guide`" in str(response.error())


def test_errors_say_their_code_to_those_who_ask(host: EngineHost, driver: Driver) -> None:
    sent = {"text_input": shaped([b"hi"], "STRING"), "max_tokens": shaped([6], "INT32")}
    for more, start in (({"top_p": shaped([2.0], "FP32")}, "INVALID_ARG: `top_p`"), ({}, "INTERNAL: out of")):
        request = Request(**sent, **more)
        request.beside = {"peagle_error_codes": True}
        host.accept(request)
        if not more:
            driver.emit("", finish_reason="error", error="out of memory", metrics=METRICS)
        assert str(request.sender.wait()[0][0].error()).startswith(start)


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


def test_a_sequence_is_refused_before_it_reaches_the_engine(host: EngineHost, driver: Driver) -> None:
    request = Request(text_input=shaped([b"hi"], "STRING"), max_tokens=shaped([6], "INT32"))
    request.sequence = 7
    host.accept(request)
    ((response, _),) = wait(request.sender)
    assert (response.error().code(), driver.requests) == ("invalid", {})
    assert "`sequence_id` is not supported" in str(response.error())


def test_a_client_is_looked_for_once_between_two_pieces() -> None:
    sender = Sender()
    reply = Reply(
        sender=sender, is_streaming=True, returns_text_bytes=False, on_finish=lambda chunk: None, parts=[Part(), Part()]
    )
    looks = []
    for index in (None, 0, 1):
        if index is not None:
            reply.receive(index, GenerationChunk(request_id="a", token_ids=(1,), text="x"))
        for _ in range(3):
            assert not reply.is_unwanted()
        looks.append(sender.num_looks)
    # One that waits for its turn makes no pieces, and its client may leave too.
    assert looks == [3, 4, 5]


def test_what_was_found_once_is_not_asked_again() -> None:
    sender = Sender()
    sender.has_left = True
    reply = Reply(
        sender=sender, is_streaming=True, returns_text_bytes=False, on_finish=lambda chunk: None, parts=[Part()]
    )
    assert reply.is_unwanted() and reply.is_unwanted()
    assert sender.num_looks == 1
