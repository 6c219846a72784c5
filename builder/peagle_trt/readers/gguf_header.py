"""A GGUF file's header, walked once before the library that reads it believes a count or a length in it.

Source: the format's description in the ggml project: magic, version, number of tensors, number of keys; then the keys
(name, type, value), the tensors (name, dimensions, type, offset), and after padding the tensors' bytes.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.foreign_file import open_foreign

_AGAIN = "fetch the file again"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
# Bytes of a value, by type: (u)int 8, 16, 32, float, bool, then (u)int 64 and double.
_VALUE_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_MAX_DIMENSIONS = 4  # Source: GGML_MAX_DIMS.
_MAX_NAME_BYTES = 65_535  # Of a key, by the format; a tensor's has at most 64.
_MAX_BYTES = (1 << 63) - 1
# The library makes several Python objects of every item, a few hundred bytes.
_MAX_ITEMS = 4_000_000


def check_header(path: Path) -> None:
    """Refuse a file whose header leads outside the file, or asks for more than a model has.

    Raises:
        CheckpointError: It is no GGUF file of a known version, or it is truncated or damaged.
    """
    with open_foreign(path) as file:
        walk = _Walk(path=path, file=file, size_bytes=path.stat().st_size)
        _check_start(walk)
        num_tensors, num_keys = walk.number(8, "the number of tensors"), walk.number(8, "the number of keys")
        for _ in range(walk.count(num_keys, 13, "keys")):
            _skip_key(walk)
        # Where the bytes of tensors lie is checked when their types are known, by whom describes them.
        for _ in range(walk.count(num_tensors, 24, "tensors")):
            _skip_tensor(walk)


@dataclass(slots=True, kw_only=True)
class _Walk:
    """A place in the file that only moves forward, and never beyond the end."""

    path: Path
    file: BinaryIO
    size_bytes: int
    num_items: int = 0

    def number(self, width: int, what: str) -> int:
        return int.from_bytes(self.read(width, what), "little")

    def text(self, what: str) -> bytes:
        length = self.number(8, f"the length of {what}")
        if length > _MAX_NAME_BYTES:
            raise self.refuse(f"{what} has {length:,} bytes")
        return self.read(length, what)

    def read(self, length: int, what: str) -> bytes:
        content = self.file.read(length)
        if len(content) < length:
            raise self.refuse(f"it ends within {what}")
        return content

    def skip(self, length: int, what: str) -> None:
        position = self.file.tell() + length
        if position > self.size_bytes:
            raise self.refuse(f"{what} would end at byte {position:,} of {self.size_bytes:,}")
        self.file.seek(position)

    def count(self, number: int, least_bytes: int, what: str) -> int:
        """A number of items that the rest of the file has room for."""
        self.num_items += number
        if number * least_bytes > self.size_bytes - self.file.tell() or self.num_items > _MAX_ITEMS:
            raise self.refuse(f"it claims {number:,} {what}")
        return number

    def refuse(self, why: str) -> CheckpointError:
        return CheckpointError(f"`{self.path}` is truncated, or its header is damaged: {why}", hint=_AGAIN)


def _check_start(walk: _Walk) -> None:
    start = walk.file.read(8)
    magic, version = start[:4], int.from_bytes(start[4:], "little")
    if len(start) < 8:
        raise CheckpointError(f"`{walk.path}` has {len(start)} bytes, too few for a GGUF file", hint=_AGAIN)
    if magic != b"GGUF":
        raise CheckpointError(f"`{walk.path}` is no GGUF file: it starts with `{magic!r}`", hint=_AGAIN)
    if version not in _VERSIONS:
        raise CheckpointError(
            f"`{walk.path}` is GGUF of version {version}; expected {' or '.join(map(str, _VERSIONS))}",
            hint="convert the model again with a current tool",
        )


def _skip_key(walk: _Walk) -> None:
    key = walk.text("a key").decode("utf-8", "backslashreplace")
    _skip_value(walk, walk.number(4, f"the type of `{key}`"), f"`{key}`")


def _skip_value(walk: _Walk, kind: int, what: str) -> None:
    if kind == _STRING:
        walk.skip(walk.number(8, f"the length of {what}"), what)
    elif kind == _ARRAY:
        _skip_array(walk, what)
    elif kind in _VALUE_BYTES:
        walk.skip(_VALUE_BYTES[kind], what)
    else:
        raise walk.refuse(f"{what} has the unknown type {kind}")


def _skip_array(walk: _Walk, what: str) -> None:
    kind, number = walk.number(4, f"the type of {what}"), walk.number(8, f"the length of {what}")
    if kind == _ARRAY:
        # Nothing writes one, and the library would descend into it without end.
        raise walk.refuse(f"{what} is a list of lists")
    if kind == _STRING:
        for _ in range(walk.count(number, 8, f"items of {what}")):
            walk.skip(walk.number(8, f"the length of an item of {what}"), what)
    elif kind in _VALUE_BYTES:
        walk.skip(walk.count(number, _VALUE_BYTES[kind], f"items of {what}") * _VALUE_BYTES[kind], what)
    else:
        raise walk.refuse(f"{what} is a list of the unknown type {kind}")


def _skip_tensor(walk: _Walk) -> None:
    name = walk.text("the name of a tensor").decode("utf-8", "backslashreplace")
    num_dimensions = walk.number(4, f"the number of dimensions of `{name}`")
    if num_dimensions > _MAX_DIMENSIONS:
        raise walk.refuse(f"tensor `{name}` has {num_dimensions:,} dimensions")
    sizes = struct.unpack(f"<{num_dimensions}Q", walk.read(8 * num_dimensions, f"the dimensions of `{name}`"))
    # Eight bytes an element at most.
    if math.prod(sizes) * 8 > _MAX_BYTES:
        raise walk.refuse(f"tensor `{name}` of dimensions {list(sizes)} would be larger than any file")
    walk.skip(4, f"the type of `{name}`")
    if walk.number(8, f"the offset of `{name}`") > walk.size_bytes:
        raise walk.refuse(f"tensor `{name}` would begin behind the end of the file")
