"""Typed access to a GGUF file's metadata."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.ranges import Range

if TYPE_CHECKING:
    from gguf import GGUFReader, ReaderField

_WHOLE_TYPES = ("UINT8", "INT8", "UINT16", "INT16", "UINT32", "INT32", "UINT64", "INT64")


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFields:
    """Metadata by key; every refusal names file and key.

    Attributes:
        path: The file, for messages.
        reader: The open file.
    """

    path: Path
    reader: GGUFReader

    def integer(self, key: str, default: int | None = None, *, within: Range) -> int:
        """A whole number of a range."""
        found = self._read(key, default)
        value = within.whole(found)
        if value is None:
            raise self.refuse(key, f"a whole number {within}", found)
        return value

    def optional_integer(self, key: str, *, within: Range) -> int | None:
        """A whole number of a range, or None where the key is absent."""
        return self.integer(key, within=within) if self.has(key) else None

    def number(self, key: str, default: float | None = None, *, within: Range) -> float:
        """A number of a range; stored as float32, so its shortest decimal form is what the author wrote."""
        found = self._read(key, default)
        value = within.number(found)
        if value is None:
            raise self.refuse(key, f"a number {within}", found)
        return float(str(np.float32(value)))

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._read(key, default)
        if not isinstance(value, str):
            raise self.refuse(key, "a string", value)
        return value

    def has(self, key: str) -> bool:
        """Whether the key is there."""
        return self.reader.get_field(key) is not None

    def is_set(self, key: str) -> bool:
        """Whether the key is there with anything but zero, false or nothing."""
        return bool(self._read(key, False))

    def refuse(self, key: str, expected: str, found: object) -> CheckpointError:
        """The error for a value that cannot be used; the caller raises it."""
        return CheckpointError(f"`{self.path}`: `{key}` must be {expected}; found `{found}`")

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false."""
        value = self._read(key, default)
        if not isinstance(value, bool):
            raise self.refuse(key, "true or false", value)
        return value

    def texts(self, key: str) -> list[str]:
        """A list of strings."""
        field = self._list(key, ("STRING",), "strings")
        try:
            return [bytes(field.parts[index]).decode("utf-8") for index in field.data]
        except UnicodeDecodeError as error:
            raise CheckpointError(f"`{self.path}`: `{key}` is not UTF-8: {error}", hint="fetch it again") from error

    def integers(self, key: str) -> list[int]:
        """A list of whole numbers."""
        field = self._list(key, _WHOLE_TYPES, "whole numbers")
        return [int(field.parts[index][0]) for index in field.data]

    def count(self, key: str) -> int:
        """How many strings a list has."""
        return len(self._list(key, ("STRING",), "strings").data)

    def _list(self, key: str, kinds: tuple[str, ...], items: str) -> ReaderField:
        field = self._field(key)
        names = [kind.name for kind in field.types]
        # An empty list does not say what it would be of.
        if names[:1] != ["ARRAY"] or (field.data and names[-1] not in kinds):
            raise self.refuse(key, f"a list of {items}", " of ".join(names).lower())
        return field

    def _field(self, key: str) -> ReaderField:
        field = self.reader.get_field(key)
        if field is None:
            raise CheckpointError(f"`{self.path}`: `{key}` is missing", hint="the file is incomplete; fetch it again")
        return field

    def _read(self, key: str, default: object) -> object:
        field = self.reader.get_field(key)
        if field is not None:
            try:
                value: object = field.contents()
            except UnicodeDecodeError as error:
                raise CheckpointError(f"`{self.path}`: `{key}` is not UTF-8: {error}", hint="fetch it again") from error
            return value
        if default is None:
            raise CheckpointError(f"`{self.path}`: `{key}` is missing", hint="the file is incomplete; fetch it again")
        return default
