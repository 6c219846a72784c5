"""The bytes that single tokens stand for: a token may be part of a character, which no text can show."""

from __future__ import annotations

import json
import re
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WORD_START = "\u2581"


class TokenBytes:
    """Token id to bytes.

    Args:
        tokenizer: A `tokenizers.Tokenizer`.

    Source: GPT-2 (`bytes_to_unicode`) for vocabularies of bytes; SentencePiece for `<0x0A>` and the sign for a space.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._added = {token_id: token.content for token_id, token in tokenizer.get_added_tokens_decoder().items()}
        decoder = json.loads(tokenizer.to_str()).get("decoder")
        self._bytes_of_letter = _byte_alphabet() if "ByteLevel" in json.dumps(decoder) else None

    def __call__(self, token_id: int) -> bytes:
        """The bytes; none for an id that the tokenizer does not know, as in the padding of a vocabulary."""
        if token_id in self._added:
            return str(self._added[token_id]).encode()
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        if self._bytes_of_letter is not None:
            return bytes(self._bytes_of_letter[letter] for letter in token)
        single = _BYTE_TOKEN.fullmatch(token)
        if single:
            return bytes([int(single.group(1), 16)])
        return str(token).replace(_WORD_START, " ").encode()


def _byte_alphabet() -> dict[str, int]:
    """Letter to byte: printable bytes stand for themselves, the others for letters from 256 on, in order."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("\u00a1"), ord("\u00ac") + 1), *range(ord("\u00ae"), 256)}
    hidden = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(256 + index): byte for index, byte in enumerate(hidden)}
