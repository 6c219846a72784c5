"""The safetensors format: what is read, and that every damage is named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.safetensors_file import load_tensor, read_header
from tests.support.checkpoints import write_raw


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def header_of(**entries: object) -> bytes:
    return json.dumps(entries).encode()


def test_tensors_are_read_as_the_format_s_own_library_wrote_them(tmp_path: Path) -> None:
    tensors = {
        "single": np.float32([[1.5, -2.25, 3e-8]]),
        "half": np.float16([[0.1], [65504.0]]),
        "ids": np.int64([-3, 2**40]),
        "empty": np.zeros((0, 4), np.float32),
        "scalar": np.array(7.0, np.float32),
    }
    save_file(tensors, tmp_path / "x.safetensors")
    specs = read_header(tmp_path / "x.safetensors")
    assert specs.keys() == tensors.keys()
    for name, expected in tensors.items():
        found = load_tensor(specs[name])
        assert found.dtype == (np.int64 if name == "ids" else np.float32)
        np.testing.assert_array_equal(found, expected.astype(found.dtype))


def test_bfloat16_is_widened_exactly(tmp_path: Path) -> None:
    # bfloat16 is the upper half of a float32: 1.0 = 0x3f80, -2.5 = 0xc020, inf = 0x7f80, smallest subnormal = 0x0001.
    data = np.uint16([0x3F80, 0xC020, 0x7F80, 0x0001]).tobytes()
    path = write_raw(tmp_path / "x.safetensors", header_of(a=entry("BF16", [4], 0, 8)), data)
    np.testing.assert_array_equal(load_tensor(read_header(path)["a"]), np.float32([1.0, -2.5, np.inf, 2.0**-133]))


def test_a_quantized_type_is_described_but_not_loaded(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "x.safetensors", header_of(a=entry("F8_E4M3", [2], 0, 2)), b"\0\0")
    with pytest.raises(CheckpointError, match="`a` has type F8_E4M3"):
        load_tensor(read_header(path)["a"])


DAMAGES = {
    "empty": (b"", "it is empty"),
    "short_prefix": (b"\x01\x00", "has 2 bytes"),
    "header_longer_than_file": ((1 << 40).to_bytes(8, "little") + b"{}", "the header claims"),
    "bad_json": (b"\x02" + b"\0" * 7 + b"{,", "not a JSON object"),
    "a_list": (b"\x02" + b"\0" * 7 + b"[]", "expected an object, found list"),
    "nested": (b"\x40\x9c" + b"\0" * 6 + b'{"a":' * 8000, "nested too deeply"),
    "metadata": (b"\x14" + b"\0" * 7 + b'{"__metadata__":[1]}', "`__metadata__` is no object of strings"),
    "not_utf8": (b"\x02" + b"\0" * 7 + b"\xff\xfe", "not a JSON object"),
}


@pytest.mark.parametrize(("content", "message"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_header(path)
    assert str(path) in caught.value.message


CONTRADICTIONS = {
    "truncated": (header_of(a=entry("F32", [4], 0, 16)), b"\0" * 12, "truncated: tensor `a` ends at byte"),
    "overlap": (header_of(a=entry("F32", [2], 0, 8), b=entry("F32", [2], 4, 12)), b"\0" * 12, "`a` and `b` overlap"),
    "hole": (header_of(a=entry("F32", [1], 0, 4), b=entry("F32", [1], 8, 12)), b"\0" * 12, "before tensor `b` belong"),
    "trailing": (header_of(a=entry("F32", [1], 0, 4)), b"\0" * 12, "8 bytes after the last tensor"),
    "wrong_bytes": (header_of(a=entry("F32", [3], 0, 16)), b"\0" * 16, "occupies 16 bytes, but F32 .* takes 12"),
    "overflowing_shape": (header_of(a=entry("F32", [2**40, 2**40], 0, 4)), b"\0" * 4, "larger than any file"),
    "negative_size": (header_of(a=entry("F32", [-1], 0, 4)), b"\0" * 4, "make no sense"),
    "swapped_offsets": (header_of(a=entry("F32", [1], 4, 0)), b"\0" * 4, "make no sense"),
    "a_boolean_size": (header_of(a=entry("F32", [True], 0, 4)), b"\0" * 4, "make no sense"),
    "unknown_type": (header_of(a=entry("F33", [1], 0, 4)), b"\0" * 4, "unknown type `F33`"),
    "missing_field": (header_of(a={"dtype": "F32"}), b"", "lacks dtype, shape or data_offsets"),
    "not_an_entry": (header_of(a=3), b"", "lacks dtype, shape or data_offsets"),
    "duplicate": (b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":1}', b"", "key `a` appears twice"),
}


@pytest.mark.parametrize(("header", "data", "message"), CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys())
def test_a_header_that_contradicts_itself_is_refused(tmp_path: Path, header: bytes, data: bytes, message: str) -> None:
    path = write_raw(tmp_path / "x.safetensors", header, data)
    with pytest.raises(CheckpointError, match=message):
        read_header(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        read_header(tmp_path / "x.safetensors")
