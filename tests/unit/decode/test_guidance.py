"""Grammars as clients write them, walked over single bytes, where every text has exactly one way to be written."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from peagle_trt.decode.guidance import MAX_GUIDE_BYTES, MAX_KEPT, GuideCompiler, GuideKind, GuideSettings, TokenWalk
from peagle_trt.decode.text import TextTokenizer
from peagle_trt.errors import RequestError

END = 256
PADDED_VOCABULARY = 300
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "list": {"type": "array", "items": {"enum": ["é", "b"]}}},
        "required": ["n", "list"],
        "additionalProperties": False,
    }
)


def bytewise() -> TextTokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return TextTokenizer(tokenizer, None)


@pytest.fixture(scope="module")
def compiler() -> GuideCompiler:
    return GuideCompiler(bytewise(), PADDED_VOCABULARY, (END,))


def reads(walk: TokenWalk, text: str) -> bool:
    """Whether a text may come, to its last byte."""
    for token_id in bytewise().encode(text, add_special_tokens=False):
        if not walk.allowed()[token_id]:
            return False
        walk.take(token_id)
    return True


def start(compiler: GuideCompiler, kind: GuideKind, text: str = "") -> TokenWalk:
    return compiler.compile(GuideSettings(kind=kind, text=text), field="F").start()


WHOLE: list[tuple[GuideKind, str, str]] = [
    ("json", "", '{"anything": [1, null, {"é": true}]}'),
    ("json_schema", SCHEMA, '{"n": -12, "list": ["é", "b"]}'),
    ("json_schema", SCHEMA, '{"n":1,"list":[]}'),
    ("json_schema", SCHEMA, '{\n    "n": 1,\n    "list": [\n        "é"\n    ]\n}'),
    ("regex", "[a-c]{2}é+", "abéé"),
    ("choice", '["yes", "a.c", "\\n\\"é"]', "a.c"),
    ("choice", '["yes", "a.c", "\\n\\"é"]', '\n"é'),
    ("ebnf_grammar", 'root ::= "<" part ">"\npart ::= [0-9] | "x"', "<7>"),
]
NEVER: list[tuple[GuideKind, str, str]] = [
    ("json", "", "[1]"),
    ("json_schema", SCHEMA, '{"n": "1"'),
    ("json_schema", SCHEMA, '{"n": 1, "more"'),
    ("json_schema", SCHEMA, "{" + " " * 3),
    ("regex", "[a-c]{2}é+", "abc"),
    ("choice", '["yes", "a.c"]', "abc"),
    ("ebnf_grammar", 'root ::= "<" part ">"\npart ::= [0-9] | "x"', "<y"),
]


@pytest.mark.parametrize(("kind", "grammar", "text"), WHOLE)
def test_a_text_of_the_grammar_may_come_and_may_end(
    compiler: GuideCompiler, kind: GuideKind, grammar: str, text: str
) -> None:
    walk = start(compiler, kind, grammar)
    assert reads(walk, text)
    assert walk.may_end


@pytest.mark.parametrize(("kind", "grammar", "text"), NEVER)
def test_another_text_may_not(compiler: GuideCompiler, kind: GuideKind, grammar: str, text: str) -> None:
    assert not reads(start(compiler, kind, grammar), text)


def test_what_is_whole_and_cannot_go_on_is_complete(compiler: GuideCompiler) -> None:
    fixed, open_ended = start(compiler, "regex", "ab"), start(compiler, "regex", "ab+")
    for walk in (fixed, open_ended):
        assert not walk.is_complete
        assert reads(walk, "ab")
    assert (fixed.is_complete, open_ended.is_complete) == (True, False)


def test_tokens_taken_back_leave_no_trace(compiler: GuideCompiler) -> None:
    walk = start(compiler, "json_schema", SCHEMA)
    assert reads(walk, '{"n": 1')
    before = walk.allowed()
    assert reads(walk, '2, "list": ["b"]}')
    assert walk.is_complete
    walk.undo(len('2, "list": ["b"]}'))
    assert np.array_equal(walk.allowed(), before)
    assert not walk.may_end


def test_two_answers_with_one_grammar_go_their_own_ways(compiler: GuideCompiler) -> None:
    first, second = (start(compiler, "choice", '["ab", "cd"]') for _ in range(2))
    assert reads(first, "ab")
    assert reads(second, "cd")


def test_end_tokens_and_padding_are_never_part_of_a_text(compiler: GuideCompiler) -> None:
    walk = start(compiler, "regex", "(?s:.)*")
    allowed_V = walk.allowed()
    assert len(allowed_V) == PADDED_VOCABULARY
    assert walk.may_end
    assert not allowed_V[END:].any()


BAD: list[tuple[GuideKind, str]] = [
    ("json_schema", "{"),
    ("json_schema", "[]"),
    ("json_schema", '{"type": "lamp"}'),
    ("json_schema", '{"type": "object", "if": {}}'),
    ("json_schema", '{"type": "string", "pattern": "(?=a)b"}'),
    ("json_schema", '{"allOf": [{"type": "string"}, {"type": "integer"}]}'),
    ("regex", "[a"),
    ("regex", ""),
    ("choice", "yes"),
    ("choice", "[]"),
    ("choice", '["a", 1]'),
    ("choice", '[""]'),
    ("ebnf_grammar", 'root ::= "a" nowhere'),
    ("ebnf_grammar", ""),
    ("regex", "a" * (MAX_GUIDE_BYTES + 1)),
]


@pytest.mark.parametrize(("kind", "text"), BAD)
def test_a_grammar_that_is_none_is_refused_by_its_field_in_a_line(
    compiler: GuideCompiler, kind: GuideKind, text: str
) -> None:
    with pytest.raises(RequestError) as caught:
        start(compiler, kind, text)
    assert caught.value.message.startswith("`F`")
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 400


def test_grammars_are_compiled_once_and_not_kept_for_ever() -> None:
    compiler = GuideCompiler(bytewise(), PADDED_VOCABULARY, (END,))
    settings = [GuideSettings(kind="regex", text=f"a{index}") for index in range(MAX_KEPT + 1)]
    guides = [compiler.compile(each, field="F") for each in settings]
    assert compiler.compile(settings[-1], field="F") is guides[-1]
    assert compiler.compile(settings[0], field="F") is not guides[0]


def test_without_the_package_the_way_to_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(RequestError, match="needs the package llguidance") as caught:
        start(GuideCompiler(bytewise(), PADDED_VOCABULARY, (END,)), "json")
    assert "peagle-trt[guide]" in (caught.value.hint or "")
