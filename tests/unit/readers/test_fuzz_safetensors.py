"""Forged safetensors files: read as the format's own library reads them, or refused with their name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.safetensors_file import ELEMENT_BYTES, load_tensor, read_header
from peagle_trt.spec import TensorSpec
from tests.support.checkpoints import write_raw
from tests.support.fuzzing import EDGES, JSON_VALUES, bounded, byte_mutations, examples, fuzzed, refuses_or_reads

WHOLE = save(
    {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.arange(4, dtype=np.int64), "none": np.empty(0)},
    metadata={"format": "pt"},
)
HEADER_BYTES = 8 + int.from_bytes(WHOLE[:8], "little")


def check(path: Path) -> None:
    """What we take for whole, the format's own library takes too, with the same tensors in it."""
    specs = refuses_or_reads(lambda: read_header(path), path)
    if specs is None:
        return
    assert shapes_of_the_library(path) == {name: list(spec.shape) for name, spec in specs.items()}
    for spec in specs.values():
        load(spec)


def load(spec: TensorSpec) -> None:
    try:
        values = load_tensor(spec)
    except CheckpointError as error:
        assert spec.name in error.message
        return
    assert values.shape == spec.shape


def shapes_of_the_library(path: Path) -> dict[str, list[int]]:
    try:
        with safe_open(path, "np") as file:
            return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise AssertionError(f"the library refuses what we read: {error}") from error


@examples(400)
def test_broken_bytes(num_examples: int, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"

    @fuzzed(num_examples)
    @given(byte_mutations(WHOLE, header_bytes=HEADER_BYTES))
    def try_bytes(content: bytes) -> None:
        path.write_bytes(content)
        check(path)

    with bounded():
        try_bytes()


NUMBERS = st.one_of(st.sampled_from(EDGES), st.integers(-4, 40))
ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.one_of(st.sampled_from(sorted(ELEMENT_BYTES)), JSON_VALUES),
        "shape": st.one_of(st.lists(NUMBERS, max_size=4), JSON_VALUES),
        "data_offsets": st.one_of(st.tuples(NUMBERS, NUMBERS), JSON_VALUES),
        "more": JSON_VALUES,
    },
)
HEADERS = st.dictionaries(
    st.one_of(st.sampled_from(["a", "b", "__metadata__", "", "\ud800"]), st.text(max_size=4)),
    st.one_of(ENTRIES, JSON_VALUES),
    max_size=3,
)


@examples(400)
def test_forged_headers(num_examples: int, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"

    @fuzzed(num_examples)
    @given(HEADERS, st.binary(max_size=40))
    def try_header(header: dict[str, Any], content: bytes) -> None:
        write_raw(path, json.dumps(header).encode(), content)
        check(path)

    with bounded():
        try_header()


LENGTHS = st.lists(st.integers(0, 5), min_size=1, max_size=4)


@examples(200)
def test_extents_that_overlap_or_leave_holes(num_examples: int, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"

    @fuzzed(num_examples)
    @given(LENGTHS, st.lists(st.integers(-3, 3), min_size=4, max_size=4), st.integers(-3, 3))
    def try_extents(lengths: list[int], shifts: list[int], excess: int) -> None:
        header, start = {}, 0
        for index, (length, shift) in enumerate(zip(lengths, shifts, strict=False)):
            # Most shifts are none, so that most tensors lie well.
            start += shift if abs(shift) == 3 else 0
            header[f"t{index}"] = {"dtype": "U8", "shape": [length], "data_offsets": [start, start + length]}
            start += length
        write_raw(path, json.dumps(header).encode(), bytes(max(0, start + (excess if abs(excess) == 3 else 0))))
        check(path)

    with bounded():
        try_extents()


EMPTY = b'{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
NINES = b"9" * 4300


def entry(dtype: bytes = b'"F32"', shape: bytes = b"1", offsets: bytes = b"0,4") -> bytes:
    return b'{"a":{"dtype":%s,"shape":[%s],"data_offsets":[%s]}}' % (dtype, shape, offsets)


FORGERIES: dict[str, bytes] = {
    "list as type": entry(dtype=b"[]"),
    "object as type": entry(dtype=b"{}"),
    "type without end": entry(dtype=b'"%s"' % (b"F" * 1_000_000)),
    "sizes that overflow": entry(shape=b"9223372036854775807,9223372036854775807"),
    "overflow hidden by zero": entry(shape=b"9223372036854775807,9223372036854775807,0", offsets=b"0,0"),
    "size above all": entry(shape=b"18446744073709551616,0", offsets=b"0,0"),
    "shape without end": entry(shape=b"9," * 400_000 + b"9"),
    "product without end": entry(shape=(NINES + b",") * 2000 + b"1"),
    "shape of zeros": entry(shape=b"0," * 400_000 + b"0", offsets=b"0,0"),
    "offsets of many digits": entry(offsets=NINES + b"," + NINES),
    "number too long": entry(shape=b"9" * 5000),
    "not a number": entry(shape=b"NaN", offsets=b"0,0"),
    "deep nesting": b'{"a":' * 100_000,
    "deep lists": b'{"a":' + b"[" * 990 + b"]" * 990 + b"}",
    "same name twice": b'{"a":%s,"a":%s}' % (EMPTY, EMPTY),
    "utf-16": (b'{"a":%s}' % EMPTY).decode().encode("utf-16"),
    "byte order mark": b'\xef\xbb\xbf{"a":%s}' % EMPTY,
    "not utf-8": b'{"\xff":%s}' % EMPTY,
    "lone surrogate": rb'{"\ud800":%s}' % EMPTY,
    "name that a terminal obeys": rb'{"\u001b[31m":%s}' % EMPTY,
    "name without end": b'{"%s":%s}' % (b"x" * 1_000_000, EMPTY),
    "metadata of numbers": b'{"__metadata__":{"a":1}}',
}


@pytest.mark.parametrize("header", FORGERIES.values(), ids=FORGERIES.keys())
def test_a_forged_header_is_refused(header: bytes, tmp_path: Path) -> None:
    path = write_raw(tmp_path / "model.safetensors", header)
    with bounded():
        assert refuses_or_reads(lambda: read_header(path), path) is None


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 100_000_001, 9])
def test_a_length_that_is_a_lie_is_refused(length: int, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + b"{}")
    with bounded():
        assert refuses_or_reads(lambda: read_header(path), path) is None
