"""Forged GGUF files."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle_trt.errors import CheckpointError
from peagle_trt.readers import read_target
from tests.support.fuzzing import EDGES, bounded, byte_mutations, examples, fuzzed, refuses_or_reads
from tests.unit.readers.test_gguf import FIELDS, TOKENS, write_gguf


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "x.gguf").read_bytes()


def read_in_full(path: Path) -> None:
    """Everything that a build reads of a file."""
    target = read_target(path)
    assert target.tokenizer is not None
    json.loads(target.tokenizer.tokenizer_json())
    for name in target.weights:
        # Bytes of tensors may be anything, numbers that are none included; those are refused by name.
        try:
            target.weights.load(name)
        except CheckpointError as error:
            assert "nan or infinite" in error.message


def is_refused(path: Path) -> bool:
    with bounded():
        return refuses_or_reads(lambda: read_in_full(path) or True, path) is None


@examples(300)
def test_broken_bytes(num_examples: int, whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"

    @fuzzed(num_examples)
    @given(byte_mutations(whole, header_bytes=whole.index(b"blk.0.ffn_down.weight") + 60))
    def try_bytes(content: bytes) -> None:
        path.write_bytes(content)
        refuses_or_reads(lambda: read_in_full(path), path)

    with bounded():
        try_bytes()


NUMBERS = [number for number in EDGES if -(2**31) <= number < 2**32]
VALUES = st.one_of(
    st.sampled_from([number for number in NUMBERS if number >= 0]),
    st.floats(width=32),
    st.text(max_size=5),
    st.lists(st.text(max_size=3), min_size=1, max_size=3),
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
)


@examples(100)
def test_forged_fields(num_examples: int, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"

    @fuzzed(num_examples)
    @given(st.sampled_from(sorted(FIELDS)), VALUES)
    def try_field(key: str, value: Any) -> None:
        write_gguf(path, **{key: value})
        refuses_or_reads(lambda: read_in_full(path), path)

    with bounded():
        try_field()


def text(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


def start(num_tensors: int, num_keys: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, num_tensors, num_keys)


KEY = text(b"a.key")
HUGE = 2**63


def forgeries() -> Iterator[tuple[str, bytes]]:
    """Headers whose numbers lie, by what they lie about."""
    yield "tensors", start(HUGE, 0)
    yield "keys", start(0, HUGE)
    yield "keys of no bytes", start(0, 2**40) + bytes(1000)
    yield "key's length", start(0, 1) + struct.pack("<Q", HUGE)
    yield "string's length", start(0, 1) + KEY + struct.pack("<IQ", 8, HUGE)
    yield "type", start(0, 1) + KEY + struct.pack("<I", 99) + bytes(64)
    yield "list's length", start(0, 1) + KEY + struct.pack("<IIQ", 9, 0, HUGE)
    yield "list's length, in bytes", start(0, 1) + KEY + struct.pack("<IIQ", 9, 0, 2**40) + bytes(100)
    yield "list of strings", start(0, 1) + KEY + struct.pack("<IIQ", 9, 8, HUGE) + bytes(64)
    yield "list's type", start(0, 1) + KEY + struct.pack("<IIQ", 9, 99, 1) + bytes(64)
    yield "lists in lists", start(0, 1) + KEY + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 100_000
    yield "dimensions", start(1, 0) + text(b"t") + struct.pack("<I", 2**32 - 1) + bytes(64)
    yield "sizes", start(1, 0) + text(b"t") + struct.pack("<I4QIQ", 4, *[2**32] * 4, 0, 0) + bytes(64)
    yield "offset", start(1, 0) + text(b"t") + struct.pack("<IQIQ", 1, 4, 0, HUGE) + bytes(64)
    yield "tensor's type", start(1, 0) + text(b"t") + struct.pack("<IQIQ", 1, 4, 999, 0) + bytes(64)
    yield "name", start(1, 0) + text(b"\xff\xfe") + struct.pack("<IQIQ", 1, 4, 0, 0) + bytes(64)
    yield "key's name", start(0, 1) + text(b"\xff\xfe") + struct.pack("<II", 4, 0)
    yield "same key twice", start(0, 2) + (KEY + struct.pack("<II", 4, 0)) * 2 + bytes(64)
    yield "alignment", start(0, 1) + text(b"general.alignment") + struct.pack("<II", 4, 0) + bytes(64)
    yield "alignment's type", start(0, 1) + text(b"general.alignment") + struct.pack("<IQ", 10, 32) + bytes(64)
    yield "nothing in it", start(0, 0)


FORGERIES = dict(forgeries())


@pytest.mark.parametrize("content", FORGERIES.values(), ids=FORGERIES.keys())
def test_a_forged_header_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    assert is_refused(path)


FIELDS_OF_ANOTHER_TYPE: dict[str, dict[str, Any]] = {
    "tokens of numbers": {"tokenizer__ggml__tokens": [1, 2, 3, 4, 5, 6]},
    "tokens of one text": {"tokenizer__ggml__tokens": "abcdef"},
    "tokens of one number": {"tokenizer__ggml__tokens": 6},
    "kinds of text": {"tokenizer__ggml__token_type": ["3", "3", "1", "1", "1", "1"]},
    "too few kinds": {"tokenizer__ggml__token_type": [3, 3, 1]},
    "merges of numbers": {"tokenizer__ggml__merges": [1]},
    "merge of one token": {"tokenizer__ggml__merges": ["ab"]},
    "same token twice": {"tokenizer__ggml__tokens": ["<s>", "</s>", "a", "b", "ab", "a"]},
    "start as text": {"tokenizer__ggml__add_bos_token": "no"},
    "template of numbers": {"tokenizer__chat_template": 5},
    "width as text": {"llama__embedding_length": "32"},
    "layers as list": {"llama__block_count": [1, 1]},
    "epsilon as text": {"llama__attention__layer_norm_rms_epsilon": "small"},
}


@pytest.mark.parametrize("changes", FIELDS_OF_ANOTHER_TYPE.values(), ids=FIELDS_OF_ANOTHER_TYPE.keys())
def test_a_field_of_another_type_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    assert is_refused(write_gguf(tmp_path / "x.gguf", **changes))


def test_what_the_forgeries_are_made_from_is_read(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf")
    assert not is_refused(path)
    assert np.all(read_target(path).config.vocab_size == len(TOKENS))
