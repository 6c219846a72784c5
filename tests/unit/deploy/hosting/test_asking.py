"""What of a request reaches the engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from peagle_trt.decode.text import TextTokenizer
from peagle_trt.deploy.hosting.engine_host import EngineHost
from peagle_trt.deploy.hosting.serving_metrics import ServingMetrics
from peagle_trt.deploy.hosting.settings import HostSettings
from peagle_trt.spec import EngineManifest
from peagle_trt_repo.outputs import shaped
from tests.support.fake_triton import Request

from ..conftest import TEMPLATE, Published, byte_tokenizer
from .conftest import Driver, ask, wait


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


@pytest.mark.parametrize(("sent", "default"), [(None, False), (None, True), (False, True), (True, False)])
def test_prompt_lookup_is_what_the_request_says_and_else_the_repositorys_default(
    driver: Driver, manifest: EngineManifest, sent: bool | None, default: bool
) -> None:
    settings = HostSettings(default_prompt_lookup=default)
    tokenizer = TextTokenizer(byte_tokenizer(), TEMPLATE)
    host = EngineHost(driver, manifest, tokenizer, settings=settings, counters=ServingMetrics(None, Published()))
    ask(host, **({} if sent is None else {"prompt_lookup": shaped([sent], "BOOL")}))
    host.close()
    assert driver.last.prompt_lookup == (default if sent is None else sent)


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


def test_a_clients_time_limit_and_priority_reach_the_engine(host: EngineHost, driver: Driver) -> None:
    sent = {"text_input": shaped([b"hi"], "STRING"), "max_tokens": shaped([6], "INT32")}
    request = Request(**sent, priority=shaped([-3], "INT32"))
    request.limit_microseconds = 250_000
    host.accept(request)
    assert (driver.last.deadline_seconds, driver.last.priority) == (0.25, 3)


def test_stop_tokens_come_beside_the_models_own(host: EngineHost, driver: Driver) -> None:
    ask(host, stop_token_ids=shaped([9, 2], "INT32"))
    assert driver.last.end_ids == (2, 9)


def test_a_grammar_reaches_the_engine(host: EngineHost, driver: Driver) -> None:
    guide = {"guided_decoding_guide_type": b"choice", "guided_decoding_guide": b'["a"]'}
    ask(host, **{name: shaped([text], "STRING") for name, text in guide.items()})
    assert driver.last.guide is not None
    assert np.flatnonzero(driver.last.guide.start().allowed()).tolist() == byte_tokenizer().encode("a").ids


def test_biases_of_tokens_come_beside_those_of_words(host: EngineHost, driver: Driver) -> None:
    words = {"embedding_bias_words": shaped([b"a"], "STRING"), "embedding_bias_weights": shaped([2.0], "FP32")}
    ask(host, **words, logit_bias_ids=shaped([7], "INT32"), logit_bias_values=shaped([-1.0], "FP32"))
    assert driver.last.sampling.logit_bias == ((byte_tokenizer().encode("a").ids[0], 2.0), (7, -1.0))
    response, _ = wait(ask(host, logit_bias_ids=shaped([256], "INT32"), logit_bias_values=shaped([1.0], "FP32")))[0]
    assert "`logit_bias_ids`" in str(response.error())


def test_a_grammar_with_a_mark_reaches_the_engine_late(host: EngineHost, driver: Driver) -> None:
    guide = {"guided_decoding_guide_type": b"choice", "guided_decoding_guide": b'["a"]'}
    sent = {name: shaped([text], "STRING") for name, text in guide.items()}
    ask(host, **sent, guided_decoding_start_ids=shaped([9], "INT32"))
    assert driver.last.guide is not None
    walk = driver.last.guide.start()
    assert walk.allowed().all()
    walk.take(9)
    assert np.flatnonzero(walk.allowed()).tolist() == byte_tokenizer().encode("a").ids
    response, _ = wait(ask(host, **sent, guided_decoding_start_ids=shaped([256], "INT32")))[0]
    assert "`guided_decoding_start_ids` holds a token id outside 0..255" in str(response.error())


@pytest.mark.parametrize(
    ("sent", "name"),
    [
        (
            {"embedding_bias_words": shaped([b"a"], "STRING"), "embedding_bias_weights": shaped([2e4], "FP32")},
            "embedding_bias_weights",
        ),
        ({"logit_bias_ids": shaped([7], "INT32"), "logit_bias_values": shaped([-2e4], "FP32")}, "logit_bias_values"),
        ({"text_input": shaped([b""], "STRING"), "input_ids": shaped([256], "INT32")}, "input_ids"),
        ({"text_input": shaped([b""], "STRING"), "input_ids": shaped([-1], "INT32")}, "input_ids"),
    ],
)
def test_the_input_that_was_sent_is_named(host: EngineHost, driver: Driver, sent: dict[str, Any], name: str) -> None:
    response, _ = wait(ask(host, **sent))[0]
    assert str(response.error()).startswith(f"`{name}` holds ")
    assert driver.requests == {}
