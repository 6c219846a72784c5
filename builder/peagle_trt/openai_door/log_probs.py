"""Log probabilities as OpenAI's clients read them.

Source: OpenAI's API reference, `logprobs` of the chat completion object and of the completion object.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Document = dict[str, object]
TokenBytesOf = Callable[[int], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEntry:
    """A token of an answer and how likely it was.

    Attributes:
        token_id: The token.
        log_prob: Natural logarithm of its probability.
        top: The likeliest tokens in its place and theirs, best first.
    """

    token_id: int
    log_prob: float
    top: tuple[tuple[int, float], ...] = ()


def chat_log_probs(entries: Sequence[TokenEntry], bytes_of: TokenBytesOf) -> Document:
    """`logprobs` of a chat's choice."""
    content = []
    for entry in entries:
        token = _chat_token(entry.token_id, entry.log_prob, bytes_of)
        token["top_logprobs"] = [_chat_token(token_id, value, bytes_of) for token_id, value in entry.top]
        content.append(token)
    return {"content": content, "refusal": None}


class CompletionLogProbs:
    """`logprobs` of one completion's choice, piece by piece.

    Args:
        bytes_of: Bytes of a token.
    """

    def __init__(self, bytes_of: TokenBytesOf) -> None:
        self._bytes_of = bytes_of
        # A character of several tokens counts where its last one is.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def document(self, entries: Sequence[TokenEntry]) -> Document:
        """That of the next tokens."""
        offsets = []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(self._bytes_of(entry.token_id)))
        return {
            "tokens": [self._text(entry.token_id) for entry in entries],
            "token_logprobs": [entry.log_prob for entry in entries],
            "top_logprobs": [{self._text(token_id): value for token_id, value in entry.top} for entry in entries],
            "text_offset": offsets,
        }

    def _text(self, token_id: int) -> str:
        return _text(self._bytes_of(token_id))


def _chat_token(token_id: int, log_prob: float, bytes_of: TokenBytesOf) -> Document:
    raw = bytes_of(token_id)
    return {"token": _text(raw), "logprob": log_prob, "bytes": list(raw)}


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        # As OpenAI spells a part of a character; two such tokens must not become one key.
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
