"""gpt-oss's published vocabulary, out of a package that carries it, and a tokenizer over it."""

from __future__ import annotations

import base64
import gzip
import importlib.util
from pathlib import Path
from typing import Any

from peagle_trt.openai_door.harmony_vocabulary import _letters

# Ids 199998 onwards.
ADDED = ["<|startoftext|>", "<|endoftext|>", "<|r0|>", "<|r1|>", "<|return|>", "<|constrain|>", "<|r4|>", "<|channel|>"]
ADDED += ["<|start|>", "<|end|>", "<|message|>", "<|r9|>", "<|r10|>", "<|r11|>", "<|call|>"]


def vocabulary() -> dict[str, int]:
    # Found, not imported: importing it warns.
    spec = importlib.util.find_spec("bpe_openai")
    assert spec is not None and spec.origin is not None
    path = Path(spec.origin).parent / "data" / "o200k_base.tiktoken.gz"
    letters = {byte: letter for letter, byte in _letters().items()}
    entries = (line.split() for line in gzip.decompress(path.read_bytes()).splitlines())
    return {"".join(letters[byte] for byte in base64.b64decode(token)): int(rank) for token, rank in entries}


def bytewise_tokenizer(vocab: dict[str, int]) -> Any:
    """A `tokenizers.Tokenizer` that knows every token, and makes single bytes of a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(ADDED)
    return tokenizer
