"""openai-harmony's vocabulary out of the build's own tokenizer, so that nothing is downloaded."""

from __future__ import annotations

import base64
import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from peagle_trt.decode.text import TextTokenizer
from peagle_trt.errors import CheckpointError, MachineError

if TYPE_CHECKING:
    import openai_harmony

FILE_NAME = "o200k_base.tiktoken"
FOLDER_VARIABLE = "TIKTOKEN_ENCODINGS_BASE"
"""Where openai-harmony looks for the file before it asks the network; it compares the file's digest itself."""
CONTROL_TOKENS = ("<|return|>", "<|constrain|>", "<|channel|>", "<|start|>", "<|end|>", "<|message|>", "<|call|>")


def speaks_harmony(tokenizer: TextTokenizer) -> bool:
    """Whether a vocabulary has the tokens that channels are made of."""
    return all(tokenizer.token_id(token) is not None for token in CONTROL_TOKENS)


def load_encoding(tokenizer: TextTokenizer) -> openai_harmony.HarmonyEncoding:
    """The encoding of gpt-oss.

    Args:
        tokenizer: The build's text side.

    Raises:
        MachineError: openai-harmony is not installed.
        CheckpointError: The build's vocabulary is not gpt-oss's.
    """
    try:
        import openai_harmony as harmony
    except ImportError as error:
        message = "this model answers in harmony's channels, and `openai-harmony` is missing"
        raise MachineError(message, hint="pip install 'peagle-trt[serve]'") from error
    try:
        with tempfile.TemporaryDirectory() as folder, _looked_up_in(folder):
            (Path(folder) / FILE_NAME).write_bytes(_ranks(tokenizer))
            encoding = harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)
    except harmony.HarmonyError as error:
        raise CheckpointError(f"the tokenizer has harmony's tokens but not gpt-oss's vocabulary: {error}") from error
    for token in CONTROL_TOKENS:
        expected = encoding.encode(token, allowed_special="all")
        if [tokenizer.token_id(token)] != expected:
            raise CheckpointError(f"`{token}` is token {tokenizer.token_id(token)}, expected {expected[0]}")
    return encoding


def _ranks(tokenizer: TextTokenizer) -> bytes:
    letters = _letters()
    vocabulary = sorted(tokenizer.base_vocabulary().items(), key=lambda entry: entry[1])
    try:
        return b"".join(
            base64.b64encode(bytes(letters[letter] for letter in token)) + b" %d\n" % token_id
            for token, token_id in vocabulary
        )
    except KeyError as error:
        message = f"the tokenizer has harmony's tokens, but `{error.args[0]}` is no byte of a byte-level vocabulary"
        raise CheckpointError(message) from error


def _letters() -> dict[str, int]:
    """The letter that stands for each byte in a byte-level vocabulary. Source: GPT-2, `bytes_to_unicode`."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


@contextlib.contextmanager
def _looked_up_in(folder: str) -> Iterator[None]:
    previous = os.environ.get(FOLDER_VARIABLE)
    os.environ[FOLDER_VARIABLE] = folder
    try:
        yield
    finally:
        if previous is None:
            del os.environ[FOLDER_VARIABLE]
        else:
            os.environ[FOLDER_VARIABLE] = previous
