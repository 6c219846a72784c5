"""Log probabilities, several answers, end tokens and time limits from a real server, against the build itself."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from peagle_trt.decode.request import SamplingSettings
from peagle_trt.decode.session import Generation, LoadedBuild, generate
from peagle_trt.deploy.client import grpc_inputs
from peagle_trt.errors import PeagleError, RequestError

from .conftest import Served

PROMPT = "Question: Tom has 3 apples and buys 4 more. How many apples does he have?\nAnswer:"
ASK = {"text_input": PROMPT, "max_tokens": 48}
MODELS = pytest.mark.parametrize("model", ["peagle", "ensemble"])
LONG = {"text_input": PROMPT, "max_tokens": 900, "end_id": -1, "draft_tokens": 0}


def expected(loaded: LoadedBuild, **changes: Any) -> Generation:
    return generate(loaded, [replace(loaded.request(PROMPT, max_tokens=48), **changes)])[0]


@MODELS
def test_log_probabilities_are_those_of_the_build(served: Served, loaded: LoadedBuild, model: str) -> None:
    wanted = [entry.log_prob for entry in expected(loaded, num_top_log_probs=0).log_probs]
    answer = served.http.generate({**ASK, "return_log_probs": True}, model=model)
    np.testing.assert_allclose(answer["output_log_probs"], wanted, atol=1e-4)
    assert answer["cum_log_probs"] == pytest.approx(sum(wanted), abs=1e-3)


@MODELS
def test_streamed_log_probabilities_add_up(served: Served, model: str) -> None:
    whole = served.http.generate({**ASK, "return_log_probs": True}, model=model)
    pieces = list(served.http.generate_stream({**ASK, "return_log_probs": True}, model=model))
    streamed = [value for piece in pieces for value in piece["output_log_probs"]]
    np.testing.assert_allclose(streamed, whole["output_log_probs"], atol=1e-4)
    assert pieces[-1]["cum_log_probs"] == pytest.approx(whole["cum_log_probs"], abs=1e-3)


def test_the_likeliest_tokens_come_along(served: Served, loaded: LoadedBuild) -> None:
    answer = served.http.generate({**ASK, "num_top_log_probs": 3})
    # A greedy answer takes the likeliest every time.
    assert answer["top_token_ids"][::3] == answer["output_ids"]
    wanted = [value for entry in expected(loaded, num_top_log_probs=3).log_probs for _, value in entry.top]
    np.testing.assert_allclose(answer["top_log_probs"], wanted, atol=1e-4)


SAMPLED = {**ASK, "temperature": 1.5, "seed": 5, "end_id": -1, "max_tokens": 20}


@MODELS
def test_several_answers_are_those_of_the_seeds_that_follow(served: Served, model: str) -> None:
    alone = [served.http.generate({**SAMPLED, "seed": seed}, model=model)["text_output"] for seed in (5, 6, 7)]
    answer = served.http.generate({**SAMPLED, "num_return_sequences": 3}, model=model)
    assert answer["text_output"] == alone
    assert len(set(alone)) == 3
    assert answer["num_output_tokens"] == 60
    assert answer["finish_reason"] == ["length"] * 3


@MODELS
def test_streamed_answers_say_whose_piece_it_is(served: Served, model: str) -> None:
    whole = served.http.generate({**SAMPLED, "num_return_sequences": 3}, model=model)["text_output"]
    texts = ["", "", ""]
    for piece in served.http.generate_stream({**SAMPLED, "num_return_sequences": 3}, model=model):
        texts[piece["sequence_index"]] += piece["text_output"]
    assert texts == whole


@MODELS
def test_beams_are_refused_with_what_there_is_instead(served: Served, model: str) -> None:
    with pytest.raises(RequestError, match=r"`beam_width` is not supported.*`num_return_sequences`"):
        served.http.generate({**ASK, "beam_width": 2}, model=model)


@MODELS
def test_several_end_tokens_and_stop_tokens_end_an_answer(served: Served, loaded: LoadedBuild, model: str) -> None:
    ids = list(expected(loaded).token_ids)
    ends = [ids[9], ids[5]]
    kept = ids[: min(ids.index(end) for end in ends)]
    for name in ("end_id", "stop_token_ids"):
        answer = served.http.generate({**ASK, name: ends}, model=model)
        assert answer["text_output"] == loaded.tokenizer.decode(kept)
        assert answer["finish_reason"] == "stop"


def test_an_answer_ends_when_its_time_is_up_with_what_there_is(served: Served) -> None:
    whole = served.http.generate(LONG)
    seconds = 0.05
    answer = served.http.generate({**LONG, "timeout": int(seconds * 1e6)})
    assert answer["finish_reason"] == "deadline"
    assert 0 < answer["num_output_tokens"] < whole["num_output_tokens"]
    assert whole["output_ids"][: answer["num_output_tokens"]] == answer["output_ids"]


@MODELS
def test_a_grpc_clients_time_limit_holds(served: Served, model: str) -> None:
    import queue

    import tritonclient.grpc as grpc_client

    results: queue.SimpleQueue[Any] = queue.SimpleQueue()
    client = grpc_client.InferenceServerClient(f"127.0.0.1:{served.server.ports.grpc}")
    client.start_stream(callback=lambda result, error: results.put((result, error)))
    client.async_stream_infer(model, grpc_inputs({**LONG, "return_log_probs": True}), timeout=50_000)
    result, error = results.get(timeout=60)
    client.stop_stream()
    client.close()
    assert error is None
    assert result.as_numpy("finish_reason").tolist() == [[b"deadline"]]
    count = int(result.as_numpy("num_output_tokens").item())
    # The classic shapes: a batch, beams, tokens.
    assert result.as_numpy("output_log_probs").shape == (1, 1, count)
    assert result.as_numpy("cum_log_probs").shape == (1, 1)


def test_a_time_limit_that_is_no_number_is_refused(served: Served) -> None:
    with pytest.raises((RequestError, PeagleError), match="`timeout`"):
        served.http.generate({**ASK, "timeout": "soon"})


def test_log_probabilities_do_not_depend_on_the_sampling(served: Served, loaded: LoadedBuild) -> None:
    sampling = SamplingSettings(temperature=1.5, seed=5)
    wanted = expected(loaded, sampling=sampling, num_top_log_probs=0, end_ids=())
    answer = served.http.generate({**SAMPLED, "max_tokens": 48, "return_log_probs": True})
    assert tuple(answer["output_ids"]) == wanted.token_ids
    np.testing.assert_allclose(answer["output_log_probs"], [entry.log_prob for entry in wanted.log_probs], atol=1e-4)


SCHEMA = {
    "type": "object",
    "properties": {"count": {"type": "integer", "minimum": 0, "maximum": 99}, "fruit": {"enum": ["apple", "pear"]}},
    "required": ["count", "fruit"],
    "additionalProperties": False,
}
GUIDES = {
    "schema": ("json_schema", json.dumps(SCHEMA), r"\{\s*\"count\".*\"(apple|pear)\"\s*\}"),
    "regex": ("regex", "[0-9]{2}/[0-9]{2}", "[0-9]{2}/[0-9]{2}"),
    "choice": ("choice", '["seven", "eight"]', "seven|eight"),
    "grammar": ("ebnf_grammar", 'root ::= "<" [a-c]{3} ">"', "<[a-c]{3}>"),
}


@MODELS
@pytest.mark.parametrize("name", GUIDES)
def test_a_grammar_is_followed_and_drafts_change_nothing(served: Served, name: str, model: str) -> None:
    kind, text, pattern = GUIDES[name]
    ask = {**ASK, "max_tokens": 100, "guided_decoding_guide_type": kind, "guided_decoding_guide": text}
    fast, plain = (served.http.generate({**ask, "draft_tokens": count}, model=model) for count in (5, 0))
    assert re.fullmatch(pattern, fast["text_output"], re.DOTALL)
    assert fast["text_output"] == plain["text_output"]
    assert fast["finish_reason"] == "stop"


@MODELS
def test_a_bad_grammar_is_refused_by_name(served: Served, model: str) -> None:
    ask = {**ASK, "guided_decoding_guide_type": "regex", "guided_decoding_guide": "[a"}
    with pytest.raises(RequestError, match="`guided_decoding_guide` is no regex"):
        served.http.generate(ask, model=model)


@MODELS
def test_a_grammar_holds_from_a_mark_on(served: Served, loaded: LoadedBuild, model: str) -> None:
    ids = list(expected(loaded).token_ids)
    # Where the mark's first token comes for the first time, or its second would be forced earlier.
    place = next(i for i in range(3, len(ids)) if ids[i] not in ids[:i])
    mark = ids[place : place + 2]
    guide = {"guided_decoding_guide_type": "choice", "guided_decoding_guide": '["seven", "eight"]'}
    ask = {**ASK, "max_tokens": 100, **guide, "guided_decoding_start_ids": mark}
    fast, plain = (served.http.generate({**ask, "draft_tokens": count}, model=model) for count in (5, 0))
    before = loaded.tokenizer.decode(ids[: place + 2])
    assert fast["text_output"] in (f"{before}seven", f"{before}eight")
    assert fast["text_output"] == plain["text_output"]
    assert fast["finish_reason"] == "stop"
