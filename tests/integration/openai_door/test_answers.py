"""What OpenAI's own client gets, compared with the same build in this process."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import openai
import pytest

from peagle_trt.decode.session import LoadedBuild, generate
from tests.support.servers import wait_until

from .conftest import Door

QUESTION = "Tom has 3 apples and buys 4 more. How many apples does he have?"
PROMPT = f"Question: {QUESTION}\nAnswer:"
TURNS: Any = [{"role": "user", "content": QUESTION}]
REPEATING = "red apple, green pear, blue plum, red apple, green pear, blue plum, red apple, green pear,"
GREEDY: dict[str, Any] = {"model": "tiny", "messages": TURNS, "temperature": 0, "max_tokens": 48}


@pytest.fixture
def client(door: Door) -> openai.OpenAI:
    return door.client()


def expected_text(loaded: LoadedBuild, **changes: Any) -> str:
    request = replace(loaded.chat_request(QUESTION, max_tokens=48), **changes)
    return generate(loaded, [request])[0].text


def test_a_chat_answer_is_the_answer_of_the_build_itself(client: openai.OpenAI, loaded: LoadedBuild) -> None:
    answer = client.chat.completions.create(**GREEDY)
    assert answer.choices[0].message.content == expected_text(loaded)
    assert answer.choices[0].finish_reason in ("stop", "length")


def test_the_pieces_of_a_stream_are_the_answer_and_its_usage_is_the_whole_answers(
    client: openai.OpenAI, loaded: LoadedBuild
) -> None:
    pieces = list(client.chat.completions.create(**GREEDY, stream=True, stream_options={"include_usage": True}))
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces[:-1]) == expected_text(loaded)
    assert pieces[0].choices[0].delta.role == "assistant"
    assert [piece.usage for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].choices == []
    assert pieces[-1].usage == client.chat.completions.create(**GREEDY).usage


def test_usage_counts_prompt_and_answer(client: openai.OpenAI, loaded: LoadedBuild) -> None:
    usage = client.chat.completions.create(**{**GREEDY, "max_tokens": 7}, extra_body={"ignore_eos": True}).usage
    assert usage is not None
    assert usage.prompt_tokens == len(loaded.chat_request(QUESTION, max_tokens=1).prompt_ids)
    assert usage.completion_tokens == 7
    assert usage.total_tokens == usage.prompt_tokens + 7


def test_a_completion_continues_text_and_tokens(client: openai.OpenAI, loaded: LoadedBuild) -> None:
    ids = loaded.tokenizer.encode(PROMPT)
    for prompt in (PROMPT, ids):
        answer = client.completions.create(model="tiny", prompt=prompt, temperature=0, max_tokens=48)
        assert answer.choices[0].text == expected_text(loaded)


def test_a_streamed_completion_is_the_answer(client: openai.OpenAI, loaded: LoadedBuild) -> None:
    pieces = client.completions.create(model="tiny", prompt=PROMPT, temperature=0, max_tokens=48, stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == expected_text(loaded)


def test_every_prompt_of_a_list_is_a_choice(client: openai.OpenAI, loaded: LoadedBuild) -> None:
    answer = client.completions.create(model="tiny", prompt=["Question: 1 + 1", PROMPT], temperature=0, max_tokens=48)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[1].text == expected_text(loaded)


def test_choices_of_one_request_differ_and_a_seed_repeats_them(client: openai.OpenAI) -> None:
    ask = {**GREEDY, "temperature": 2.0, "n": 3, "seed": 5}
    first, second = (client.chat.completions.create(**ask) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert len(set(texts)) == 3
    assert texts == [choice.message.content for choice in second.choices]


def test_a_stop_word_ends_the_answer_and_is_cut_from_it(client: openai.OpenAI, loaded: LoadedBuild) -> None:
    whole = expected_text(loaded)
    stop = whole[len(whole) // 2 :][:4]
    answer = client.chat.completions.create(**GREEDY, stop=[stop])
    assert answer.choices[0].message.content == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_fields_that_ask_for_nothing_are_accepted(client: openai.OpenAI, loaded: LoadedBuild) -> None:
    answer = client.chat.completions.create(
        **GREEDY, user="me", metadata={"a": "b"}, store=True, service_tier="auto", response_format={"type": "text"}
    )
    assert answer.choices[0].message.content == expected_text(loaded)


def test_the_model_is_listed_and_described(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "peagle-trt"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_an_answer_has_the_id_its_request_came_with(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(**GREEDY, extra_headers={"x-request-id": "abc.1"})
    assert raw.headers["x-request-id"] == "abc.1"
    assert client.models.with_raw_response.list().headers["x-request-id"].startswith("req-")


def test_a_chats_log_probabilities_are_those_of_the_build(client: openai.OpenAI, loaded: LoadedBuild) -> None:
    request = replace(loaded.chat_request(QUESTION, max_tokens=48), num_top_log_probs=2)
    wanted = generate(loaded, [request])[0]
    logprobs = client.chat.completions.create(**GREEDY, logprobs=True, top_logprobs=2).choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert b"".join(bytes(token.bytes or []) for token in logprobs.content).decode() == wanted.text
    for token, entry in zip(logprobs.content, wanted.log_probs, strict=True):
        assert token.logprob == pytest.approx(entry.log_prob, abs=1e-4)
        given = [top.logprob for top in token.top_logprobs]
        assert given == pytest.approx([value for _, value in entry.top], abs=1e-4)
        assert token.top_logprobs[0].token == token.token


def test_streamed_log_probabilities_are_those_of_the_whole(client: openai.OpenAI) -> None:
    ask: Any = {"model": "tiny", "prompt": PROMPT, "temperature": 0, "max_tokens": 48, "logprobs": 2}
    whole = client.completions.create(**ask).choices[0].logprobs
    assert whole is not None and whole.token_logprobs is not None and whole.text_offset is not None
    pieces = [piece.choices[0].logprobs for piece in client.completions.create(**ask, stream=True)]
    streamed = [value for piece in pieces if piece for value in piece.token_logprobs or []]
    assert streamed == pytest.approx(whole.token_logprobs, abs=1e-4)
    assert [offset for piece in pieces if piece for offset in piece.text_offset or []] == whole.text_offset


def test_a_stop_token_ends_the_answer(client: openai.OpenAI, loaded: LoadedBuild) -> None:
    ids = generate(loaded, [loaded.chat_request(QUESTION, max_tokens=48)])[0].token_ids
    answer = client.chat.completions.create(**GREEDY, extra_body={"stop_token_ids": [ids[7]]})
    assert answer.choices[0].message.content == loaded.tokenizer.decode(ids[: ids.index(ids[7])])
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("is_streaming", [False, True])
def test_an_answer_whose_time_is_up_is_cut_off_and_says_so(client: openai.OpenAI, is_streaming: bool) -> None:
    more = {"ignore_eos": True, "draft_tokens": 0, "max_time": 0.05}
    answer: Any = client.chat.completions.create(**{**GREEDY, "max_tokens": 900}, extra_body=more, stream=is_streaming)
    last = list(answer)[-1].choices[0] if is_streaming else answer.choices[0]
    assert (last.finish_reason, last.stop_reason) == ("length", "deadline")


SCHEMA: Any = {
    "type": "object",
    "properties": {"count": {"type": "integer", "minimum": 0, "maximum": 99}, "fruit": {"enum": ["apple", "pear"]}},
    "required": ["count", "fruit"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("is_streaming", [False, True])
def test_a_schema_is_followed(client: openai.OpenAI, is_streaming: bool) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "fruit", "schema": SCHEMA}}
    ask = {**GREEDY, "max_tokens": 100, "response_format": form}
    answer: Any = client.chat.completions.create(**ask, stream=is_streaming)
    text = answer.choices[0].message.content if not is_streaming else ""
    text = "".join(piece.choices[0].delta.content or "" for piece in answer) if is_streaming else text
    found = json.loads(text)
    assert isinstance(found["count"], int) and found["fruit"] in ("apple", "pear")


def test_prompt_lookup_is_asked_for_and_changes_no_answer(client: openai.OpenAI, door: Door) -> None:
    def copied() -> float:
        return door.metrics().get("peagle_looked_up_tokens_total", 0.0)

    ask: Any = {"model": "tiny", "prompt": REPEATING, "temperature": 0, "max_tokens": 96}
    plain = client.completions.create(**ask, extra_body={"prompt_lookup": False}).choices[0].text
    before = copied()
    assert client.completions.create(**ask, extra_body={"prompt_lookup": True}).choices[0].text == plain
    assert wait_until(lambda: copied() > before)
    whole = client.chat.completions.create(**GREEDY).choices[0].message.content
    pieces = client.chat.completions.create(**GREEDY, stream=True, extra_body={"prompt_lookup": True})
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == whole


def test_drafts_do_not_change_an_answer_that_follows_a_schema(client: openai.OpenAI) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "fruit", "schema": SCHEMA}}
    texts = [
        client.chat.completions.create(**GREEDY, response_format=form, extra_body={"draft_tokens": count})
        .choices[0]
        .message.content
        for count in (0, 5)
    ]
    assert texts[0] == texts[1]


def test_an_answer_is_one_of_the_choices(client: openai.OpenAI) -> None:
    more = {"structured_outputs": {"choice": ["seven", "eight"]}}
    answer = client.completions.create(model="tiny", prompt=PROMPT, temperature=0, extra_body=more)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) in [("seven", "stop"), ("eight", "stop")]


def test_a_biased_token_comes_and_a_barred_one_does_not(client: openai.OpenAI, loaded: LoadedBuild) -> None:
    (wanted,) = loaded.tokenizer.encode("x", add_special_tokens=False)
    text = client.chat.completions.create(**GREEDY, logit_bias={str(wanted): 100}).choices[0].message.content
    assert text is not None and set(text) == {"x"}
    first = generate(loaded, [loaded.chat_request(QUESTION, max_tokens=1)])[0].token_ids[0]
    other = client.chat.completions.create(**{**GREEDY, "max_tokens": 1}, logit_bias={str(first): -100})
    assert other.choices[0].message.content != loaded.tokenizer.decode([first])


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "likeliest tokens of nothing": ({"top_logprobs": 2}, "top_logprobs"),
    "a stop token of another model": ({"extra_body": {"stop_token_ids": [10**6]}}, "stop_token_ids"),
    "no time at all": ({"extra_body": {"max_time": 0}}, "max_time"),
    "a schema that is none": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "lamp"}}}},
        "response_format.json_schema.schema",
    ),
    "a format without its schema": ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    "a pattern that is none": ({"extra_body": {"structured_outputs": {"regex": "[a"}}}, "structured_outputs.regex"),
    "a bias of no token": ({"logit_bias": {"x": 1}}, "logit_bias"),
    "two grammars": ({"extra_body": {"structured_outputs": {"regex": "a", "choice": ["b"]}}}, "structured_outputs"),
    "a forced tool": ({"tool_choice": "required"}, "tool_choice"),
    "a flag that is none": ({"extra_body": {"prompt_lookup": "always"}}, "prompt_lookup"),
    "a misspelt field": ({"extra_body": {"temprature": 1}}, "temprature"),
    "too hot": ({"temperature": 3.0}, "temperature"),
    "an empty stop word": ({"stop": [""]}, "stop[0]"),
    "a picture": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[0].content[0].type",
    ),
    "no turns": ({"messages": []}, "messages"),
    "a long prompt": ({"messages": [{"role": "user", "content": "word " * 3000}]}, "messages"),
    "too many drafts": ({"extra_body": {"draft_tokens": 99}}, "draft_tokens"),
    "tools": ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    "two limits": ({"max_completion_tokens": 3}, "max_tokens"),
}


@pytest.mark.parametrize("is_streaming", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(client: openai.OpenAI, name: str, is_streaming: bool) -> None:
    changes, param = REFUSED[name]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{**GREEDY, **changes}, stream=is_streaming)
    assert caught.value.param == param


def test_another_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(**{**GREEDY, "model": "gpt-4o"})
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize("is_streaming", [False, True])
def test_an_answer_whose_client_leaves_is_cancelled_at_the_server(door: Door, is_streaming: bool) -> None:
    before = door.metrics().get("peagle_cancelled_requests_total", 0.0)
    long: dict[str, Any] = {**GREEDY, "max_tokens": 900, "extra_body": {"ignore_eos": True, "draft_tokens": 0}}
    client = door.client()
    if is_streaming:
        stream = client.chat.completions.create(**long, stream=True)
        next(iter(stream))
        stream.close()
    else:
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=0.1).chat.completions.create(**long)
    deadline = time.monotonic() + 10
    while door.metrics().get("peagle_cancelled_requests_total", 0.0) == before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert door.metrics()["peagle_cancelled_requests_total"] == before + 1
