"""Text that is whole at every moment, and stop strings wherever they fall."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from peagle_trt.decode.answer import Answer
from peagle_trt.decode.text import TextTokenizer
from peagle_trt.errors import RequestError

TEXT = "Hi, h\u00e9llo \u4f60\u597d \U0001f984! Stop here. END and more"


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    """One token a byte: every character outside ASCII spans tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(["<eos>"])
    return TextTokenizer(
        raw, "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ eos_token }}", "", "<eos>"
    )


def pieces(tokenizer: TextTokenizer, text: str, stops: tuple[str, ...] = ()) -> tuple[list[str], list[int], bool]:
    answer = Answer(tokenizer.stream(), stops)
    texts: list[str] = []
    ids: list[int] = []
    for token in tokenizer.encode(text):
        answer.push(token)
        new_ids, new_text = answer.release()
        ids.extend(new_ids)
        texts.append(new_text)
        if answer.is_stopped:
            break
    answer.finish()
    new_ids, new_text = answer.release()
    return [*texts, new_text], ids + list(new_ids), answer.is_stopped


def test_no_piece_ends_inside_a_character(tokenizer: TextTokenizer) -> None:
    texts, ids, _ = pieces(tokenizer, TEXT)
    assert "".join(texts) == TEXT
    assert all("\ufffd" not in text for text in texts)
    assert ids == tokenizer.encode(TEXT)


def test_the_tokens_of_a_piece_decode_to_its_text_alone(tokenizer: TextTokenizer) -> None:
    answer = Answer(tokenizer.stream(), ())
    for token in tokenizer.encode(TEXT):
        answer.push(token)
        ids, text = answer.release()
        assert tokenizer.decode(ids) == text


def test_an_answer_cut_inside_a_character_ends_with_a_replacement(tokenizer: TextTokenizer) -> None:
    answer = Answer(tokenizer.stream(), ())
    for token in tokenizer.encode("ab\U0001f984")[:-1]:
        answer.push(token)
    assert answer.release()[1] == "ab"
    answer.finish()
    assert answer.release()[1] == "\ufffd"


@pytest.mark.parametrize(
    ("stops", "expected"),
    [
        (("END",), "Hi, h\u00e9llo \u4f60\u597d \U0001f984! Stop here. "),
        (("nowhere",), TEXT),
        (("\u597d",), "Hi, h\u00e9llo \u4f60"),
        (("Stop", "llo"), "Hi, h\u00e9"),
        (("Hi",), ""),
        (("ENDLESS", "and"), "Hi, h\u00e9llo \u4f60\u597d \U0001f984! Stop here. END "),
        (("",), TEXT),
    ],
)
def test_a_stop_string_ends_and_leaves_no_trace(
    tokenizer: TextTokenizer, stops: tuple[str, ...], expected: str
) -> None:
    texts, _, stopped = pieces(tokenizer, TEXT, stops)
    assert "".join(texts) == expected
    assert stopped == (expected != TEXT)


def test_nothing_that_a_stop_string_could_take_back_is_sent(tokenizer: TextTokenizer) -> None:
    answer = Answer(tokenizer.stream(), ("abcd",))
    sent = ""
    for letter in "xxabcabcd":
        answer.push(tokenizer.encode(letter)[0])
        sent += answer.release()[1]
        assert "xxabcabcd".startswith(sent)
    assert (sent, answer.is_stopped) == ("xxabc", True)


def test_special_tokens_leave_no_text(tokenizer: TextTokenizer) -> None:
    answer = Answer(tokenizer.stream(), ())
    for token in (*tokenizer.encode("a"), tokenizer.token_id("<eos>"), *tokenizer.encode("b")):
        assert token is not None
        answer.push(token)
    assert answer.release()[1] == "ab"


def test_the_template_renders_messages(tokenizer: TextTokenizer) -> None:
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}]) == "<user>hi<eos>"


def test_a_template_that_reaches_out_is_refused(tokenizer: TextTokenizer) -> None:
    hostile = TextTokenizer(tokenizer._tokenizer, "{{ messages.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(RequestError, match="refuses"):
        hostile.apply_chat_template([{"role": "user", "content": "hi"}])


def test_a_model_without_a_template_says_so(tokenizer: TextTokenizer) -> None:
    with pytest.raises(RequestError, match="no chat template"):
        TextTokenizer(tokenizer._tokenizer, None).apply_chat_template([])


@pytest.mark.parametrize("template", ["{{ 1 / 0 }}", "{{ range(10**9) | list }}", "{{ messages[99].content.x.y }}"])
def test_a_template_that_breaks_is_a_refusal(tokenizer: TextTokenizer, template: str) -> None:
    with pytest.raises(RequestError, match="the chat template refuses the messages"):
        TextTokenizer(tokenizer._tokenizer, template).apply_chat_template([{"role": "user", "content": "hi"}])


def test_text_that_is_no_text_is_a_refusal(tokenizer: TextTokenizer) -> None:
    # What Python makes of the argument bytes ff fe.
    with pytest.raises(RequestError, match="not valid UTF-8 at character 2"):
        tokenizer.encode("hi\udcff\udcfe")
