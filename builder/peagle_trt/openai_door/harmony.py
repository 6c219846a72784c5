"""gpt-oss's own form of conversations and answers: messages in channels, told apart so that no thought becomes content.

Source: OpenAI, "Harmony response format"; openai-harmony renders and parses it.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING

from peagle_trt.openai_door.dialects import AnswerPiece, AnswerReader, CallPiece
from peagle_trt.openai_door.fields import ChatFields, Message, Tool
from peagle_trt.openai_door.refusals import RefusalError, invalid
from peagle_trt.openai_door.turns import arguments_of, text_of

if TYPE_CHECKING:
    import openai_harmony

logger = logging.getLogger(__name__)

FUNCTIONS = "functions."
"""What the recipient of a function call starts with."""
FINAL_START = "<|channel|>final<|message|>"
"""How the message for the user begins."""
_INSTRUCTING = ("system", "developer")


class HarmonyDialect:
    """Conversations in channels.

    Args:
        encoding: The vocabulary of gpt-oss.
    """

    def __init__(self, encoding: openai_harmony.HarmonyEncoding) -> None:
        self._encoding = encoding

    def prompt_ids(self, fields: ChatFields) -> list[int]:
        """See `Dialect`."""
        import openai_harmony as harmony

        tools = fields.tools if fields.tool_choice != "none" else None
        effort = harmony.ReasoningEffort((fields.reasoning_effort or "medium").capitalize())
        system = harmony.SystemContent.new().with_reasoning_effort(effort)
        system = system.with_conversation_start_date(date.today().isoformat())
        turns = [harmony.Message.from_role_and_content(harmony.Role.SYSTEM, system)]
        num_leading = next(
            (i for i, turn in enumerate(fields.messages) if turn.role not in _INSTRUCTING), len(fields.messages)
        )
        leading = [text_of(turn, index) for index, turn in enumerate(fields.messages[:num_leading])]
        if leading or tools:
            turns.append(_instructions("\n\n".join(leading), tools or []))
        for index, message in enumerate(fields.messages[num_leading:], num_leading):
            turns += _turns(fields.messages, message, index)
        try:
            conversation = harmony.Conversation.from_messages(turns)
            return list(self._encoding.render_conversation_for_completion(conversation, harmony.Role.ASSISTANT))
        except harmony.HarmonyError as error:
            raise RefusalError(f"the messages cannot be rendered: {error}", param="messages") from error

    @property
    def content_start_ids(self) -> tuple[int, ...]:
        """See `Dialect`."""
        return tuple(self._encoding.encode(FINAL_START, allowed_special="all"))

    def reader(self) -> AnswerReader:
        """See `Dialect`."""
        return HarmonyReader(self._encoding)

    def guided_reader(self) -> AnswerReader:
        """See `Dialect`."""
        # What a model says before a call follows no grammar, and would make the content none.
        return HarmonyReader(self._encoding, content_channels=("final",))


class HarmonyReader:
    """Tells the channels of one answer apart.

    `final` is content, and so is a `commentary` to nobody, which the format means for the user; a message to
    `functions.NAME` is a call. Everything else is reasoning, and so is all that follows a fault in the format.

    Args:
        encoding: The vocabulary of gpt-oss.
        content_channels: Channels whose messages to nobody are content.
    """

    def __init__(
        self,
        encoding: openai_harmony.HarmonyEncoding,
        content_channels: tuple[str, ...] = ("final", "commentary"),
    ) -> None:
        import openai_harmony as harmony

        self._encoding = encoding
        self._content_channels = content_channels
        self._content_state = harmony.StreamState.CONTENT
        self._fault = harmony.HarmonyError
        self._parser = harmony.StreamableParser(encoding, harmony.Role.ASSISTANT)
        self._num_calls = 0
        self._is_in_call = False
        self._is_broken = False

    def read(self, text: str, token_ids: Sequence[int]) -> AnswerPiece:
        """See `AnswerReader`."""
        del text
        content, reasoning, calls, num_reasoning_tokens = [], [], list[CallPiece](), 0
        content_places = []
        for place, token_id in enumerate(token_ids):
            if not self._process(token_id):
                rest = token_ids[place:]
                reasoning.append(self._encoding.decode(rest))
                num_reasoning_tokens += len(rest)
                break
            if self._parser.state != self._content_state:
                self._is_in_call = False
                continue
            delta = self._parser.last_content_delta or ""
            if (self._parser.current_recipient or "").startswith(FUNCTIONS):
                calls.append(self._call_piece(delta))
            elif self._is_for_user():
                content.append(delta)
                content_places.append(place)
            else:
                reasoning.append(delta)
                num_reasoning_tokens += 1
        return AnswerPiece(
            content="".join(content),
            reasoning="".join(reasoning),
            calls=tuple(calls),
            num_reasoning_tokens=num_reasoning_tokens,
            content_places=tuple(content_places),
        )

    def _process(self, token_id: int) -> bool:
        if not self._is_broken:
            try:
                self._parser.process(token_id)
            except self._fault as error:
                self._is_broken = True
                logger.warning("an answer left the harmony format, and its rest counts as reasoning: %s", error)
        return not self._is_broken

    def _is_for_user(self) -> bool:
        return self._parser.current_recipient is None and self._parser.current_channel in self._content_channels

    def _call_piece(self, arguments: str) -> CallPiece:
        if self._is_in_call:
            return CallPiece(index=self._num_calls - 1, arguments=arguments)
        self._is_in_call = True
        self._num_calls += 1
        name = (self._parser.current_recipient or "").removeprefix(FUNCTIONS)
        call_id = f"call_{secrets.token_hex(12)}"
        return CallPiece(index=self._num_calls - 1, name=name, call_id=call_id, arguments=arguments)


def _instructions(text: str, tools: Sequence[Tool]) -> openai_harmony.Message:
    import openai_harmony as harmony

    content = harmony.DeveloperContent.new()
    if text:
        content = content.with_instructions(text)
    if tools:
        content = content.with_function_tools(
            [
                harmony.ToolDescription.new(
                    tool.function.name, tool.function.description or "", parameters=tool.function.parameters
                )
                for tool in tools
            ]
        )
    return harmony.Message.from_role_and_content(harmony.Role.DEVELOPER, content)


def _turns(messages: Sequence[Message], message: Message, index: int) -> list[openai_harmony.Message]:
    import openai_harmony as harmony

    text = text_of(message, index)
    if message.role in _INSTRUCTING:
        return [_instructions(text, [])]
    if message.role == "user":
        return [harmony.Message.from_role_and_content(harmony.Role.USER, text)]
    if message.role == "tool":
        author = harmony.Author.new(harmony.Role.TOOL, FUNCTIONS + _called_function(messages, message, index))
        answer = harmony.Message.from_author_and_content(author, text)
        return [answer.with_channel("commentary").with_recipient("assistant")]
    turns = []
    if message.reasoning_content:
        turns.append(_assistant(message.reasoning_content, "analysis"))
    if text:
        turns.append(_assistant(text, "commentary" if message.tool_calls else "final"))
    for place, call in enumerate(message.tool_calls or []):
        arguments_of(call.function.arguments, f"messages[{index}].tool_calls[{place}].function.arguments")
        turn = _assistant(call.function.arguments, "commentary").with_recipient(FUNCTIONS + call.function.name)
        turns.append(turn.with_content_type("<|constrain|>json"))
    return turns


def _assistant(text: str, channel: str) -> openai_harmony.Message:
    import openai_harmony as harmony

    return harmony.Message.from_role_and_content(harmony.Role.ASSISTANT, text).with_channel(channel)


def _called_function(messages: Sequence[Message], message: Message, index: int) -> str:
    for earlier in reversed(messages[:index]):
        for call in earlier.tool_calls or []:
            if call.id == message.tool_call_id:
                return call.function.name
    raise invalid(f"messages[{index}].tool_call_id", "answers no call of an earlier message")
