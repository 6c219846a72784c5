"""How a model reads a conversation and how its answer is told apart: the interface, and the plain dialect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from peagle_trt.decode.text import TextTokenizer
from peagle_trt.errors import RequestError
from peagle_trt.openai_door.fields import ChatFields
from peagle_trt.openai_door.refusals import RefusalError, unsupported
from peagle_trt.openai_door.turns import template_tools, template_turns


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPiece:
    """A piece of a function call.

    Attributes:
        index: Which call of the answer.
        name: The function; set on the first piece of a call, with `call_id`.
        call_id: Id of the call.
        arguments: What this piece adds to the arguments.
    """

    index: int
    name: str | None = None
    call_id: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPiece:
    """What some tokens added to an answer.

    Attributes:
        content: For the user.
        reasoning: What the model thought.
        calls: Functions it wants called.
        num_reasoning_tokens: Tokens that went into the reasoning.
        content_places: Which of the tokens went into the content.
    """

    content: str = ""
    reasoning: str = ""
    calls: tuple[CallPiece, ...] = ()
    num_reasoning_tokens: int = 0
    content_places: tuple[int, ...] = ()


class AnswerReader(Protocol):
    """Tells one answer apart, piece by piece."""

    def read(self, text: str, token_ids: Sequence[int]) -> AnswerPiece:
        """Takes what the server sent."""
        ...


class Dialect(Protocol):
    """What a model was trained to read and write."""

    def prompt_ids(self, fields: ChatFields) -> list[int]:
        """The conversation as tokens.

        Raises:
            RefusalError: It cannot be put into this model's form.
        """
        ...

    @property
    def content_start_ids(self) -> tuple[int, ...]:
        """Tokens after which an answer's content begins, and with it a grammar; empty where all of it is content."""
        ...

    def reader(self) -> AnswerReader:
        """A reader for one answer."""
        ...

    def guided_reader(self) -> AnswerReader:
        """A reader for one answer whose content follows a grammar."""
        ...


class PlainReader:
    """All text is content."""

    def read(self, text: str, token_ids: Sequence[int]) -> AnswerPiece:
        """See `AnswerReader`."""
        return AnswerPiece(content=text, content_places=tuple(range(len(token_ids))))


class TemplateDialect:
    """The model's own chat template; the whole answer is content.

    Args:
        tokenizer: The build's text side.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._reads_tools = tokenizer.template_reads("tools")
        self._reads_effort = tokenizer.template_reads("reasoning_effort")

    def prompt_ids(self, fields: ChatFields) -> list[int]:
        """See `Dialect`."""
        variables: dict[str, object] = {}
        if fields.tools and fields.tool_choice != "none":
            if not self._reads_tools:
                raise unsupported("tools", "cannot be honoured: this model's chat template has no place for them")
            variables["tools"] = template_tools(fields.tools)
        if fields.reasoning_effort is not None:
            if not self._reads_effort:
                raise unsupported("reasoning_effort", "means nothing to this model's chat template")
            variables["reasoning_effort"] = fields.reasoning_effort
        try:
            conversation = self._tokenizer.apply_chat_template(template_turns(fields.messages), variables=variables)
            # The template spells its special tokens out.
            return self._tokenizer.encode(conversation, add_special_tokens=False)
        except RefusalError:
            raise
        except RequestError as error:
            raise RefusalError(error.message, param="messages", code="invalid_value") from error

    @property
    def content_start_ids(self) -> tuple[int, ...]:
        """See `Dialect`."""
        return ()

    def reader(self) -> AnswerReader:
        """See `Dialect`."""
        return PlainReader()

    def guided_reader(self) -> AnswerReader:
        """See `Dialect`."""
        return PlainReader()
