"""JSON objects of foreign checkpoints, read with every damage named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.foreign_file import read_foreign
from peagle_trt.readers.ranges import Range

# Longer values are cut in messages.
_MAX_SHOWN_CHARACTERS = 80


class DuplicateKeyError(ValueError):
    """A JSON object names one key twice, so its meaning depends on who reads it."""


def parse_object(text: str | bytes) -> dict[str, object]:
    """Parse a JSON object.

    Raises:
        ValueError: The text is not UTF-8, not JSON, not an object, nested without end, or repeats a key.
    """
    try:
        # Bytes would be taken for UTF-16 or UTF-32 where they look so, which no other reader of these files does.
        decoded = text if isinstance(text, str) else text.decode("utf-8")
        document = json.loads(decoded, object_pairs_hook=_unique_pairs)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError(f"expected an object, found {type(document).__name__}")
    return document


def read_object(path: Path) -> Fields:
    """Read a JSON file that holds one object.

    Raises:
        CheckpointError: The file is absent, unreadable or not a JSON object.
    """
    try:
        return Fields(source=path, values=parse_object(read_foreign(path)))
    except ValueError as error:
        raise CheckpointError(f"cannot read `{path}`: {error}", hint="fetch the file again") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """Typed access to a foreign object; `null` counts as absent, and every refusal names file and key.

    Attributes:
        source: File, for messages.
        values: The object as parsed.
        path: Keys that lead to a nested object, for messages.
    """

    source: Path
    values: Mapping[str, object]
    path: str = ""

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.values.get(key) is not None

    def integer(self, key: str, default: int | None = None, *, within: Range) -> int:
        """A whole number of a range."""
        value = within.whole(self._require(key, default))
        if value is None:
            raise self.refuse(key, f"a whole number {within}")
        return value

    def optional_integer(self, key: str, *, within: Range) -> int | None:
        """A whole number of a range, or None where the key is absent or null."""
        return self.integer(key, within=within) if self.has(key) else None

    def number(self, key: str, default: float | None = None, *, within: Range) -> float:
        """A number of a range."""
        value = within.number(self._require(key, default))
        if value is None:
            raise self.refuse(key, f"a number {within}")
        return value

    def flag(self, key: str, *, default: bool = False) -> bool:
        """True or false."""
        value = self._require(key, default)
        if not isinstance(value, bool):
            raise self.refuse(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._require(key, default)
        if not isinstance(value, str):
            raise self.refuse(key, "a string")
        return value

    def integers(self, key: str, *, within: Range) -> tuple[int, ...]:
        """Whole numbers of a range; a single one counts as a list of one, an absent key as an empty list."""
        value = self.values.get(key)
        items = [] if value is None else value if isinstance(value, list) else [value]
        found = tuple(number for item in items if (number := within.whole(item)) is not None)
        if len(found) != len(items):
            raise self.refuse(key, f"a list of whole numbers {within}")
        return found

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings; an absent key counts as an empty list."""
        value = self.values.get(key)
        items = [] if value is None else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise self.refuse(key, "a list of strings")
        return tuple(items)

    def section(self, key: str) -> Fields:
        """A nested object; an absent key counts as an empty one."""
        value = self.values.get(key)
        values = {} if value is None else value
        if not isinstance(values, dict):
            raise self.refuse(key, "an object")
        return Fields(source=self.source, values=values, path=f"{self.path}{key}.")

    def refuse(self, key: str, expected: str, hint: str = "") -> CheckpointError:
        """The error for a value that cannot be used; the caller raises it."""
        found = f"found `{_shown(self.values[key])}`" if key in self.values else "the key is absent"
        return CheckpointError(f"`{self.source}`: `{self.path}{key}` must be {expected}; {found}", hint=hint)

    def _require(self, key: str, default: object) -> object:
        value = self.values.get(key)
        value = default if value is None else value
        if value is None:
            raise CheckpointError(
                f"`{self.source}`: `{self.path}{key}` is missing", hint="add the key, or fetch the file again"
            )
        return value


def _shown(value: object) -> str:
    try:
        text = json.dumps(value)
    except RecursionError:
        # It was parsed with more of the stack left.
        return "values nested too deeply to show"
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[:_MAX_SHOWN_CHARACTERS]}..."


def _unique_pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise DuplicateKeyError(f"key `{key}` appears twice")
        result[key] = value
    return result
