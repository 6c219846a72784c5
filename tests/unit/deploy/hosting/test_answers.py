"""What a client gets of an answer, and when."""

from __future__ import annotations

import numpy as np
import pytest

from peagle_trt.decode.request import TokenLogProb
from peagle_trt.deploy.hosting.engine_host import EngineHost
from peagle_trt_repo.outputs import shaped
from tests.support.fake_triton import FINAL

from .conftest import METRICS, STREAM, Driver, ask, texts, wait


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


def test_what_a_late_answer_has_so_far_is_an_answer(host: EngineHost, driver: Driver) -> None:
    sender = ask(host)
    driver.emit("abc", finish_reason="deadline", metrics=METRICS)
    arrays = wait(sender)[0][0].arrays
    assert (arrays["text_output"].item(), arrays["finish_reason"].item()) == (b"abc", b"deadline")
