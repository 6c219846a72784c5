"""Several answers to one request."""

from __future__ import annotations

import time

import pytest

from peagle_trt.deploy.hosting.engine_host import EngineHost
from peagle_trt_repo.outputs import shaped
from tests.support.fake_triton import FINAL

from .conftest import METRICS, STREAM, Driver, ask, wait

SEVERAL = {"num_return_sequences": shaped([2], "INT32"), "seed": shaped([2**64 - 1], "UINT64")}


def test_every_answer_has_a_seed_of_its_own(host: EngineHost, driver: Driver) -> None:
    ask(host, **SEVERAL)
    assert [request.sampling.seed for request, _ in driver.requests.values()] == [2**64 - 1, 0]


def test_the_answers_of_a_request_share_its_prompt(host: EngineHost, driver: Driver) -> None:
    ask(host, **SEVERAL)
    assert [request.prompt_group for request, _ in driver.requests.values()] == ["r1:mine"] * 2


def test_a_single_answer_shares_nothing(host: EngineHost, driver: Driver) -> None:
    ask(host)
    assert driver.last.prompt_group is None


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
    assert arrays["total_looked_up_tokens"].item() == 2 * METRICS.num_looked_up_tokens == 2


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
    assert (response.error().code(), flags) == ("internal", FINAL)
    deadline = time.monotonic() + 5
    while second not in driver.cancelled and time.monotonic() < deadline:
        time.sleep(0.001)
    driver.emit_to(second, "late", finish_reason="cancelled", metrics=METRICS)
    assert set(driver.cancelled) == {second}
    assert len(sender.sent) == 1


def test_one_whose_turn_never_came_is_empty_beside_one_that_began(host: EngineHost, driver: Driver) -> None:
    sender = ask(host, **SEVERAL)
    first, second = driver.requests
    driver.emit_to(second, "", finish_reason="deadline")
    driver.emit_to(first, "abc", finish_reason="deadline", metrics=METRICS)
    ((response, flags),) = wait(sender)
    arrays = response.arrays
    assert (response.error(), flags) == (None, FINAL)
    assert arrays["text_output"].tolist() == [[b"abc", b""]]
    assert arrays["finish_reason"].tolist() == [[b"deadline", b"deadline"]]
    assert arrays["num_output_tokens"].item() == METRICS.num_output_tokens
    assert arrays["accepted_by_position"].tolist() == [list(METRICS.accepted_by_position)]
    assert arrays["total_looked_up_tokens"].item() == METRICS.num_looked_up_tokens


@pytest.mark.parametrize("waiting_is_told_first", [True, False])
def test_it_is_a_last_piece_of_a_stream_too(host: EngineHost, driver: Driver, waiting_is_told_first: bool) -> None:
    sender = ask(host, **SEVERAL, **STREAM)
    first, second = driver.requests
    driver.emit_to(first, "a")
    if waiting_is_told_first:
        driver.emit_to(second, "", finish_reason="deadline")
    driver.emit_to(first, "b", finish_reason="deadline", metrics=METRICS)
    if not waiting_is_told_first:
        driver.emit_to(second, "", finish_reason="deadline")
    sent = wait(sender)
    assert [flags for _, flags in sent] == [0, 0, FINAL]
    pieces = {
        response.arrays["sequence_index"].item(): (
            response.arrays["text_output"].item(),
            response.arrays["finish_reason"].item(),
            response.arrays["num_output_tokens"].item(),
        )
        for response, _ in sent[1:]
    }
    assert pieces == {0: (b"b", b"deadline", METRICS.num_output_tokens), 1: (b"", b"deadline", 0)}


def test_where_no_turn_came_the_request_is_refused(host: EngineHost, driver: Driver) -> None:
    sender = ask(host, **SEVERAL)
    for name in list(driver.requests):
        driver.emit_to(name, "", finish_reason="deadline")
    ((response, flags),) = wait(sender)
    assert (response.error().code(), flags) == ("unavailable", FINAL)


def test_more_answers_than_may_wait_are_refused_together(host: EngineHost, driver: Driver) -> None:
    response, _ = wait(ask(host, num_return_sequences=shaped([3], "INT32")))[0]
    assert (response.error().code(), driver.requests) == ("unavailable", {})
