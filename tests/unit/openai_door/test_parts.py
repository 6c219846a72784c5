from __future__ import annotations

import json
from pathlib import Path

import pytest

from peagle_trt.cli.main import run
from peagle_trt.decode.text import TextTokenizer
from peagle_trt.errors import MachineError
from peagle_trt.openai_door.dialects import TemplateDialect
from peagle_trt.openai_door.fields import ChatFields
from peagle_trt.openai_door.limits import AnswerLimit, RequestRate
from peagle_trt.openai_door.listener import bind
from peagle_trt.openai_door.reading import read_fields
from peagle_trt.openai_door.refusals import RefusalError
from peagle_trt.openai_door.settings import DoorSettings

TOOLS_TEMPLATE = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
TOOLS_TEMPLATE += "{% for c in m.tool_calls or [] %}{{ c.function.arguments.city }}{% endfor %}{% endfor %}"
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def chat(**fields: object) -> ChatFields:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return read_fields(json.dumps(body).encode(), ChatFields)


def tokenizer(template: str) -> TextTokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()
    return TextTokenizer(bytewise, template)


def rendered(template: str, fields: ChatFields) -> str:
    text = tokenizer(template)
    return text.decode(TemplateDialect(text).prompt_ids(fields))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": True}, "n"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "a", "colour": 1}]}, "messages[0].colour"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"logit_bias": {"5": 101}}, "logit_bias[...]"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 1, "05": 2}}, "logit_bias"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"best_of": True}, "best_of"),
    ],
)
def test_a_fault_is_named_by_its_path(fields: dict[str, object], param: str) -> None:
    with pytest.raises(RefusalError) as caught:
        chat(**fields)
    assert caught.value.param == param
    assert caught.value.status == 400


def test_a_missing_field_is_named() -> None:
    with pytest.raises(RefusalError) as caught:
        read_fields(b'{"model": "m"}', ChatFields)
    assert caught.value.param == "messages"


def test_tools_reach_the_template_and_none_keeps_them_out() -> None:
    assert '"name": "weather"' in rendered(TOOLS_TEMPLATE, chat(tools=[TOOL]))
    assert rendered(TOOLS_TEMPLATE, chat(tools=[TOOL], tool_choice="none")) == "<user>hi"


def test_tools_that_a_template_would_lose_are_refused() -> None:
    with pytest.raises(RefusalError, match="no place for them"):
        rendered("{% for m in messages %}{{ m.content }}{% endfor %}", chat(tools=[TOOL]))


def test_arguments_of_earlier_calls_are_objects_for_the_template() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}}
    turn = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert rendered(TOOLS_TEMPLATE, chat(messages=[turn])) == "<assistant>Bonn"
    call["function"] = {"name": "weather", "arguments": "[1"}
    with pytest.raises(RefusalError) as caught:
        rendered(TOOLS_TEMPLATE, chat(messages=[turn]))
    assert caught.value.param == "messages[0].tool_calls[0].function.arguments"


def test_parts_of_text_are_joined_and_a_developer_is_the_system() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert rendered(TOOLS_TEMPLATE, chat(messages=[{"role": "developer", "content": parts}])) == "<system>ab"


def test_a_bucket_fills_with_time() -> None:
    now = [0.0]
    rate = RequestRate(2, lambda: now[0])
    rate.take("a")
    rate.take("a")
    rate.take("b")
    with pytest.raises(RefusalError) as caught:
        rate.take("a")
    assert caught.value.headers == {"retry-after": "30"}
    now[0] = 30.0
    rate.take("a")


def test_room_for_answers_comes_back() -> None:
    limit = AnswerLimit(2)
    with limit.room_for(2), pytest.raises(RefusalError), limit.room_for(1):
        pass
    with limit.room_for(2):
        pass


def test_a_taken_port_is_found_early() -> None:
    with (
        bind(DoorSettings(port=0)) as listener,
        pytest.raises(MachineError, match="cannot be used"),
    ):
        bind(DoorSettings(port=listener.getsockname()[1]))


@pytest.mark.parametrize(
    "words",
    [
        ["--openai-port", "9000"],
        ["--openai", "--tls-key", "key.pem"],
        ["--openai", "--api-key-file", "no-such-file"],
        ["--openai", "--tls-certificate", "no-such-file", "--tls-key", "no-such-file"],
    ],
)
def test_options_of_the_door_that_cannot_work_are_wrong_use(tmp_path: Path, words: list[str]) -> None:
    assert run(["serve", str(tmp_path), *words]) == 2
