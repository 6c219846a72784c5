"""Grammars of guided answers, through llguidance.

Source: llguidance 1.9 (Microsoft, MIT), its `LLMatcher`.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from peagle_trt.decode.text import TextTokenizer
from peagle_trt.errors import RequestError

GuideKind = Literal["json", "json_schema", "regex", "ebnf_grammar", "choice"]
GUIDE_KINDS: tuple[str, ...] = get_args(GuideKind)
"""Source: TensorRT-LLM's guide types, less `structural_tag`; `choice` is vLLM's."""

ANY_OBJECT = '{"type": "object"}'
MAX_GUIDE_BYTES = 64 * 1024
"""A longer grammar is more likely a fault than a schema; compiling one takes a thread of the server."""
COMPILE_FUEL = 200_000
"""What a grammar may cost to compile, in llguidance's unit; a fifth of its default, half a second at worst here."""
MAX_KEPT = 32
"""Compiled grammars that are kept: clients send the same schema again and again."""
WHITESPACE = r"( |\n {0,12})?"
"""Between the parts of a JSON text: a space, or a new line and what six levels are indented by. Without a limit a model
may write spaces to the end of its answer, and a small one does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuideSettings:
    """A grammar as a client writes it.

    Attributes:
        kind: `json` for any object, `json_schema`, `regex` (of the whole answer), `ebnf_grammar` (GBNF, as llama.cpp
            and xgrammar read it), or `choice` (a JSON list of texts).
        text: The grammar; empty for `json`.
    """

    kind: GuideKind
    text: str = ""


class GuideCompiler:
    """Compiles grammars for one tokenizer. Not thread-safe; the guides it makes are used by the loop's thread.

    Args:
        tokenizer: The build's text side.
        vocab_size: V of the target, padding included.
        end_ids: The target's own end tokens.
    """

    def __init__(self, tokenizer: TextTokenizer, vocab_size: int, end_ids: tuple[int, ...]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._end_ids = end_ids
        self._native: Any = None
        self._kept: OrderedDict[GuideSettings, TokenGuide] = OrderedDict()

    def compile(self, settings: GuideSettings, *, field: str) -> TokenGuide:
        """The grammar, ready to walk.

        Args:
            settings: The grammar.
            field: The request's field it came in, for messages.

        Raises:
            RequestError: It is none, or the package that reads it is not installed.
        """
        if settings in self._kept:
            self._kept.move_to_end(settings)
            return self._kept[settings]
        if len(settings.text.encode()) > MAX_GUIDE_BYTES:
            raise RequestError(f"`{field}` has more than {MAX_GUIDE_BYTES} bytes")
        library = _library(field)
        if self._native is None:
            self._native = library.LLTokenizer(
                self._tokenizer.to_json(), n_vocab=self._vocab_size, eos_token=list(self._end_ids) or None
            )
        try:
            limits = library.LLParserLimits(initial_lexer_fuel=COMPILE_FUEL, verbose_errors=False)
            matcher = library.LLMatcher(self._native, _grammar(library, settings), log_level=0, limits=limits)
        except ValueError as error:
            raise RequestError(f"`{field}` is no {settings.kind}: {_first_line(str(error))}") from error
        if matcher.is_error():
            raise RequestError(f"`{field}` is no {settings.kind} that can be followed: {_short(matcher.get_error())}")
        guide = TokenGuide(matcher, self._vocab_size, self._end_ids)
        _require_an_answer(guide, field)
        self._kept[settings] = guide
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return guide


class TokenGuide:
    """See `peagle_trt.decode.guide.Guide`.

    Args:
        matcher: An `LLMatcher` at its start; never moved.
        vocab_size: V.
        end_ids: Tokens that the matcher counts as the end.
    """

    def __init__(self, matcher: Any, vocab_size: int, end_ids: tuple[int, ...]) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._end_ids = end_ids

    def start(self) -> TokenWalk:
        """See `Guide`."""
        return TokenWalk(self._matcher.deep_copy(), self._vocab_size, self._end_ids)


class TokenWalk:
    """See `peagle_trt.decode.guide.GuideWalk`.

    Args:
        matcher: An `LLMatcher` of its own.
        vocab_size: V.
        end_ids: Tokens that the matcher counts as the end.
    """

    def __init__(self, matcher: Any, vocab_size: int, end_ids: tuple[int, ...]) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._end_ids = list(end_ids)
        self._allowed_V: NDArray[np.bool_] | None = None

    @property
    def may_end(self) -> bool:
        """See `GuideWalk`."""
        return bool(self._matcher.is_accepting())

    @property
    def is_complete(self) -> bool:
        """See `GuideWalk`."""
        # The matcher does not always see at once that nothing can follow.
        return self.may_end and (bool(self._matcher.is_stopped()) or not self.allowed().any())

    def allowed(self) -> NDArray[np.bool_]:
        """See `GuideWalk`."""
        if self._allowed_V is None:
            mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            self._require_sane()
            self._allowed_V = np.unpackbits(mask, count=self._vocab_size, bitorder="little").astype(np.bool_)
            self._allowed_V[self._end_ids] = False
        return self._allowed_V.copy()

    def take(self, token_id: int) -> None:
        """See `GuideWalk`."""
        self._allowed_V = None
        self._matcher.consume_token(token_id)
        self._require_sane()

    def undo(self, count: int) -> None:
        """See `GuideWalk`."""
        self._allowed_V = None
        self._matcher.rollback(count)
        self._require_sane()

    def _require_sane(self) -> None:
        if self._matcher.is_error():
            raise RequestError(f"the grammar cannot be followed any further: {_short(self._matcher.get_error())}")


def _require_an_answer(guide: TokenGuide, field: str) -> None:
    try:
        allowed_V = guide.start().allowed()
    except RequestError as error:
        raise RequestError(f"`{field}`: {error.message}") from error
    if not allowed_V.any():
        raise RequestError(f"`{field}` leaves no answer, or the empty one alone")


def _library(field: str) -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise RequestError(
            f"`{field}` needs the package llguidance, which this server lacks",
            hint="install `peagle-trt[guide]` into the environment of the models",
        ) from error
    return llguidance


def _grammar(library: Any, settings: GuideSettings) -> str:
    """In llguidance's own form.

    Raises:
        ValueError: The text is not of its kind.
    """
    kind, text = settings.kind, settings.text
    if kind in ("json", "json_schema"):
        schema = text or ANY_OBJECT
        if not isinstance(json.loads(schema), dict):
            raise ValueError("a schema is an object")
        options = {"whitespace_flexible": True, "whitespace_pattern": WHITESPACE}
        return str(library.LLMatcher.grammar_from_json_schema(schema, overrides=options))
    if kind == "regex":
        return str(library.LLMatcher.grammar_from_regex(text))
    if kind == "choice":
        choices = json.loads(text)
        if not isinstance(choices, list) or not choices or not all(isinstance(each, str) and each for each in choices):
            raise ValueError("expected a JSON list of texts, at least one, none of them empty")
        return str(library.LLMatcher.grammar_from_regex("|".join(map(_escaped, choices))))
    return str(library.grammar_from("gbnf", text))


def _escaped(text: str) -> str:
    """A regular expression for just this text. Source: Rust's `regex`, whose syntax llguidance reads."""
    return "".join(f"\\x{{{ord(letter):x}}}" for letter in text)


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:300] if text.strip() else "it cannot be read"


def _short(text: str) -> str:
    """A message of several lines with pictures of the fault, as one line."""
    return " ".join(text.split())[:300]
