"""What the door sends: whole answers and pieces of them, as OpenAI's clients read them.

Source: OpenAI's API reference, "chat completion object", "chat completion chunk object" and "completion object".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from peagle_trt.openai_door.dialects import AnswerPiece, CallPiece
from peagle_trt.openai_door.engine_stream import EnginePiece
from peagle_trt.openai_door.log_probs import CompletionLogProbs, TokenBytesOf, TokenEntry, chat_log_probs

Document = dict[str, object]

DEADLINE = "deadline"
"""How the server says that an answer's time was up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHead:
    """What all documents of one answer share."""

    answer_id: str
    created: int
    model: str


@dataclass(slots=True, kw_only=True)
class Choice:
    """One answer as far as it is known.

    Attributes:
        content: Text for the user.
        reasoning: What the model thought.
        calls: Name, id and arguments of the functions it wants called.
        finish_reason: Why it ended, in OpenAI's words.
        num_tokens: Tokens of the answer.
        num_reasoning_tokens: Those that went into the reasoning.
        entries: How likely the tokens of the content were.
        is_late: Whether its time was up.
    """

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[Document] = field(default_factory=list)
    finish_reason: str | None = None
    num_tokens: int = 0
    num_reasoning_tokens: int = 0
    entries: list[TokenEntry] = field(default_factory=list)
    is_late: bool = False

    def add(self, piece: EnginePiece, read: AnswerPiece) -> None:
        """Takes what came, and what it means."""
        self.content.append(read.content)
        self.reasoning.append(read.reasoning)
        self.num_reasoning_tokens += read.num_reasoning_tokens
        self.entries += content_entries(piece, read)
        for call in read.calls:
            self._add_call(call)
        if piece.finish_reason is not None:
            self.num_tokens = piece.num_output_tokens
            is_call = bool(self.calls) and piece.finish_reason == "stop"
            self.is_late = piece.finish_reason == DEADLINE
            # OpenAI's clients know no other word for an answer that is cut off; `stop_reason` says which limit it was.
            reason = "length" if self.is_late else piece.finish_reason
            self.finish_reason = "tool_calls" if is_call else reason

    def _add_call(self, call: CallPiece) -> None:
        if call.index == len(self.calls):
            function: Document = {"name": call.name, "arguments": ""}
            self.calls.append({"id": call.call_id, "type": "function", "function": function})
        function = self.calls[call.index]["function"]  # type: ignore[assignment]
        function["arguments"] = f"{function['arguments']}{call.arguments}"


def content_entries(piece: EnginePiece, read: AnswerPiece) -> list[TokenEntry]:
    """How likely the tokens were that went into the content."""
    return [piece.entries[place] for place in read.content_places] if piece.entries else []


def usage(choices: Sequence[Choice], num_prompt_tokens: int) -> Document:
    """Tokens of a request; of prompts each once, as OpenAI counts."""
    num_tokens = sum(choice.num_tokens for choice in choices)
    num_reasoning_tokens = sum(choice.num_reasoning_tokens for choice in choices)
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_tokens,
        "total_tokens": num_prompt_tokens + num_tokens,
        "completion_tokens_details": {"reasoning_tokens": num_reasoning_tokens},
    }


class ChatDocuments:
    """Documents of `/v1/chat/completions`.

    Args:
        bytes_of: Bytes of a token, for log probabilities; None leaves them out.
    """

    whole_object = "chat.completion"
    piece_object = "chat.completion.chunk"

    def __init__(self, bytes_of: TokenBytesOf | None = None) -> None:
        self._bytes_of = bytes_of

    def opening(self, index: int) -> Document:
        """The first piece of a choice."""
        return _choice(index, None, delta={"role": "assistant", "content": ""})

    def piece(self, index: int, read: AnswerPiece, piece: EnginePiece) -> Document | None:
        """What a piece adds, or None where it adds nothing to see."""
        entries = content_entries(piece, read)
        delta: Document = {}
        if read.content:
            delta["content"] = read.content
        if read.reasoning:
            delta["reasoning_content"] = read.reasoning
        if read.calls:
            delta["tool_calls"] = [_call_delta(call) for call in read.calls]
        return _choice(index, None, self._log_probs(entries), delta=delta) if delta or entries else None

    def ending(self, index: int, choice: Choice) -> Document:
        """The last piece of a choice."""
        return _choice(index, choice.finish_reason, delta={}) | _late(choice)

    def whole(self, index: int, choice: Choice) -> Document:
        """A choice at once."""
        content, reasoning = "".join(choice.content), "".join(choice.reasoning)
        message: Document = {"role": "assistant", "content": content or (None if choice.calls else "")}
        message["refusal"] = None
        if reasoning:
            message["reasoning_content"] = reasoning
        if choice.calls:
            message["tool_calls"] = choice.calls
        return _choice(index, choice.finish_reason, self._log_probs(choice.entries), message=message) | _late(choice)

    def _log_probs(self, entries: Sequence[TokenEntry]) -> Document | None:
        return None if self._bytes_of is None else chat_log_probs(entries, self._bytes_of)


class CompletionDocuments:
    """Documents of `/v1/completions`.

    Args:
        bytes_of: Bytes of a token, for log probabilities; None leaves them out.
    """

    whole_object = "text_completion"
    piece_object = "text_completion"

    def __init__(self, bytes_of: TokenBytesOf | None = None) -> None:
        self._bytes_of = bytes_of
        self._log_probs: dict[int, CompletionLogProbs] = {}

    def opening(self, index: int) -> Document | None:
        """A completion needs none."""
        del index
        return None

    def piece(self, index: int, read: AnswerPiece, piece: EnginePiece) -> Document | None:
        """What a piece adds, or None where it adds nothing to see."""
        entries = content_entries(piece, read)
        if not piece.text and not entries:
            return None
        return _choice(index, None, self._write(index, entries), text=piece.text)

    def ending(self, index: int, choice: Choice) -> Document:
        """The last piece of a choice."""
        return _choice(index, choice.finish_reason, text="") | _late(choice)

    def whole(self, index: int, choice: Choice) -> Document:
        """A choice at once."""
        written = self._write(index, choice.entries)
        return _choice(index, choice.finish_reason, written, text="".join(choice.content)) | _late(choice)

    def _write(self, index: int, entries: Sequence[TokenEntry]) -> Document | None:
        if self._bytes_of is None:
            return None
        return self._log_probs.setdefault(index, CompletionLogProbs(self._bytes_of)).document(entries)


Documents = ChatDocuments | CompletionDocuments


def envelope(head: AnswerHead, kind: str, choices: Sequence[Document], **more: object) -> Document:
    """The document around choices."""
    about: Document = {"id": head.answer_id, "object": kind, "created": head.created, "model": head.model}
    return {**about, "choices": list(choices), **more}


def _choice(index: int, finish_reason: str | None, log_probs: Document | None = None, **content: object) -> Document:
    return {"index": index, **content, "logprobs": log_probs, "finish_reason": finish_reason}


def _late(choice: Choice) -> Document:
    return {"stop_reason": DEADLINE} if choice.is_late else {}


def _call_delta(call: CallPiece) -> Document:
    function: Document = {"arguments": call.arguments}
    delta: Document = {"index": call.index, "function": function}
    if call.name is not None:
        delta |= {"id": call.call_id, "type": "function"}
        function["name"] = call.name
    return delta
