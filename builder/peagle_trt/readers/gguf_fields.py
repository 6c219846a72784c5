"""Typed access to a GGUF file's metadata."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from peagle_trt.errors import CheckpointError

if TYPE_CHECKING:
    from gguf import GGUFReader, ReaderField


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFields:
    """Metadata by key; every refusal names file and key.

    Attributes:
        path: The file, for messages.
        reader: The open file.
    """

    path: Path
    reader: GGUFReader

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number above 0."""
        value = self._read(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CheckpointError(f"`{self.path}`: `{key}` must be a whole number above 0; found `{value}`")
        return value

    def optional_integer(self, key: str) -> int | None:
        """A whole number, or None where the key is absent."""
        value = self._read(key, -1)
        return value if isinstance(value, int) and value >= 0 else None

    def number(self, key: str, default: float | None = None) -> float:
        """A number; stored as float32, so its shortest decimal form is what the author wrote."""
        value = self._read(key, default)
        if not isinstance(value, int | float):
            raise CheckpointError(f"`{self.path}`: `{key}` must be a number; found `{value}`")
        return float(str(np.float32(value)))

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._read(key, default)
        if not isinstance(value, str):
            raise CheckpointError(f"`{self.path}`: `{key}` must be a string; found `{value}`")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false."""
        return bool(self._read(key, default))

    def texts(self, key: str) -> list[str]:
        """A list of strings."""
        field = self._field(key)
        try:
            return [bytes(field.parts[index]).decode("utf-8") for index in field.data]
        except UnicodeDecodeError as error:
            raise CheckpointError(f"`{self.path}`: `{key}` is not UTF-8: {error}") from error

    def integers(self, key: str) -> list[int]:
        """A list of whole numbers."""
        field = self._field(key)
        return [int(field.parts[index][0]) for index in field.data]

    def count(self, key: str) -> int:
        """How many items a list has."""
        return len(self._field(key).data)

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
