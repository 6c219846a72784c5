from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from peagle_trt_repo.outputs import shaped
from peagle_trt_repo.tensors import ensemble_steps
from peagle_trt_repo.texts import postprocess, preprocess
from tests.support.fake_triton import Request


class ByteTokenizer:
    has_chat_template = False

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return bytes(token_ids).decode()

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> str:
        return f"<{messages[0]['content']}>"


class ChatTokenizer(ByteTokenizer):
    has_chat_template = True


def test_a_prompt_becomes_ids(pb_utils: Any) -> None:
    request = Request(QUERY=shaped([b"hi"], "STRING"), REQUEST_OUTPUT_LEN=shaped([4], "INT32"))
    arrays = preprocess(request, ByteTokenizer()).arrays
    assert arrays["INPUT_ID"].tolist() == [[104, 105]]
    assert arrays["REQUEST_INPUT_LEN"].tolist() == [[2]]
    assert arrays["REQUEST_OUTPUT_LEN"].tolist() == [[4]]


def test_a_turn_goes_into_the_template(pb_utils: Any) -> None:
    sent = {"QUERY": shaped([b"hi"], "STRING"), "REQUEST_OUTPUT_LEN": shaped([4], "INT32")}
    request = Request(**sent, APPLY_CHAT_TEMPLATE=shaped([True], "BOOL"))
    assert preprocess(request, ChatTokenizer()).arrays["INPUT_ID"].tolist() == [list(b"<hi>")]


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ({}, "`text_input` is missing"),
        ({"QUERY": shaped([b"hi"], "STRING")}, "`max_tokens` is missing"),
        ({"QUERY": shaped([b""], "STRING"), "REQUEST_OUTPUT_LEN": shaped([4], "INT32")}, "`text_input` is empty"),
        (
            {
                "QUERY": shaped([b"hi"], "STRING"),
                "REQUEST_OUTPUT_LEN": shaped([4], "INT32"),
                "APPLY_CHAT_TEMPLATE": shaped([True], "BOOL"),
            },
            "no chat template",
        ),
    ],
)
def test_a_request_that_cannot_be_read_is_answered_with_the_reason(
    pb_utils: Any, sent: dict[str, Any], message: str
) -> None:
    error = preprocess(Request(**sent), ByteTokenizer()).error()
    assert message in str(error)
    assert error.code() == "invalid"


def test_ids_become_text_up_to_the_length_the_engine_gives(pb_utils: Any) -> None:
    request = Request(
        TOKENS_BATCH=shaped(list("héé".encode()), "INT32"),
        SEQUENCE_LENGTH=shaped([5], "INT32"),
        TEXT_BYTES=shaped([3], "INT32"),
    )
    assert postprocess(request, ByteTokenizer()).arrays["OUTPUT"].tolist() == [["hé".encode()]]


def test_no_ids_become_no_text(pb_utils: Any) -> None:
    request = Request(TOKENS_BATCH=shaped([], "INT32"), SEQUENCE_LENGTH=shaped([0], "INT32"))
    assert postprocess(request, ByteTokenizer()).arrays["OUTPUT"].tolist() == [[b""]]


def test_every_internal_tensor_of_the_ensemble_is_written_once_and_read() -> None:
    steps = ensemble_steps()
    written = [tensor for step in steps for tensor in step.outputs.values() if tensor.startswith("_")]
    read = [tensor for step in steps for tensor in step.inputs.values() if tensor.startswith("_")]
    assert sorted(written) == sorted(read)


def test_a_sequence_is_refused_with_the_code_that_was_asked_for(pb_utils: Any) -> None:
    request = Request(QUERY=shaped([b"hi"], "STRING"), REQUEST_OUTPUT_LEN=shaped([4], "INT32"))
    request.sequence_flags = 2
    assert str(preprocess(request, ByteTokenizer()).error()).startswith("`sequence_end` is not supported")
    request.beside = {"peagle_error_codes": True}
    assert str(preprocess(request, ByteTokenizer()).error()).startswith("INVALID_ARG: `sequence_end`")


class MarkedTokenizer(ByteTokenizer):
    """Puts a token before every text, as most models want it."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + list(text.encode())


def test_tokens_that_a_tokenizer_puts_before_a_text_are_part_of_the_prompt(pb_utils: Any) -> None:
    request = Request(QUERY=shaped([b" hi\n"], "STRING"), REQUEST_OUTPUT_LEN=shaped([4], "INT32"))
    assert preprocess(request, MarkedTokenizer()).arrays["INPUT_ID"].tolist() == [[1, *b" hi\n"]]
