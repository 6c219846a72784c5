"""What a model that reasons before it answers cannot be asked for: the server would apply it to the reasoning."""

from __future__ import annotations

import json

import msgspec
import pytest

from peagle_trt.decode.text import TextTokenizer
from peagle_trt.openai_door.dialects import TemplateDialect
from peagle_trt.openai_door.fields import ChatFields, CompletionFields
from peagle_trt.openai_door.jobs import JobMaker
from peagle_trt.openai_door.reading import read_fields
from peagle_trt.openai_door.refusals import RefusalError
from tests.unit.deploy.conftest import TEMPLATE, byte_tokenizer, plain_manifest

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def maker(*, passes_stop_words: bool) -> JobMaker:
    manifest = msgspec.structs.replace(plain_manifest(), name="m")
    text = TextTokenizer(byte_tokenizer(), TEMPLATE)
    return JobMaker(manifest, text, TemplateDialect(text), passes_stop_words=passes_stop_words)


def chat(**fields: object) -> ChatFields:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return read_fields(json.dumps(body).encode(), ChatFields)


CUTS_REASONING: list[tuple[dict[str, object], str, str]] = [
    ({"stop": "."}, "stop", "`stop` would cut this model's reasoning"),
    ({"stop": ["a", "b"]}, "stop", "`stop` would cut this model's reasoning"),
    ({"response_format": {"type": "json_object"}}, "response_format", "would hold this model's reasoning"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
        "response_format.json_schema.schema",
        "would hold this model's reasoning",
    ),
    ({"structured_outputs": {"regex": "a+"}}, "structured_outputs.regex", "would hold this model's reasoning"),
]


@pytest.mark.parametrize(("sent", "param", "message"), CUTS_REASONING)
def test_what_would_cut_the_reasoning_is_refused_by_name(sent: dict[str, object], param: str, message: str) -> None:
    with pytest.raises(RefusalError, match=message) as caught:
        maker(passes_stop_words=False).chat(chat(**sent))
    assert (caught.value.param, caught.value.code, caught.value.status) == (param, "unsupported_parameter", 400)


@pytest.mark.parametrize("sent", [entry[0] for entry in CUTS_REASONING])
def test_a_model_that_answers_at_once_is_asked_for_it(sent: dict[str, object]) -> None:
    (job,) = maker(passes_stop_words=True).chat(chat(**sent)).jobs
    assert "stop_words" in job or "guided_decoding_guide_type" in job


@pytest.mark.parametrize("sent", [{"stop": []}, {"response_format": {"type": "text"}}])
def test_what_asks_for_nothing_passes_at_any_model(sent: dict[str, object]) -> None:
    (job,) = maker(passes_stop_words=False).chat(chat(**sent)).jobs
    assert not {"stop_words", "guided_decoding_guide_type"} & set(job)


def test_a_completion_has_no_reasoning_to_cut() -> None:
    body = json.dumps({"model": "m", "prompt": "hi", "stop": "."}).encode()
    (job,) = maker(passes_stop_words=False).completion(read_fields(body, CompletionFields)).jobs
    assert job["stop_words"] == ["."]


def test_without_a_limit_an_answer_may_fill_the_context() -> None:
    request = maker(passes_stop_words=True).chat(chat())
    (job,) = request.jobs
    room = plain_manifest().shapes.max_sequence_length - len(job["input_ids"])
    assert job["max_tokens"] == room
    assert maker(passes_stop_words=True).chat(chat(max_tokens=5)).jobs[0]["max_tokens"] == 5


def test_several_choices_are_one_request_for_each_prompt() -> None:
    body = json.dumps({"model": "m", "prompt": ["ab", "cd"], "n": 3, "seed": 7}).encode()
    work = maker(passes_stop_words=True).completion(read_fields(body, CompletionFields))
    assert work.num_choices == 3
    # Choice i of prompt p has the seed that follows those of the prompts before.
    assert [(job["num_return_sequences"], job["seed"]) for job in work.jobs] == [(3, 7), (3, 10)]


def test_one_choice_asks_for_no_others() -> None:
    assert "num_return_sequences" not in maker(passes_stop_words=True).chat(chat()).jobs[0]
