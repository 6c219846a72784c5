"""Writes the YAML that servers read: mappings, lists and scalars, in an order a person chose."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

Value: TypeAlias = "bool | int | float | str | Mapping[str, Value] | Sequence[bool | int | float | str] | None"
Document: TypeAlias = "Mapping[str, Value]"


def write_yaml(document: Document, heading: Sequence[str] = ()) -> str:
    """A document in YAML 1.2.

    Args:
        document: Keys in order; lists hold scalars alone and are written on one line.
        heading: Lines of comment above it; a break inside one would end the comment, so none is kept.
    """
    comments = (f"# {' '.join(line.split())}" for line in heading)
    return "".join(f"{line}\n" for line in (*comments, *_lines(document, "")))


def _lines(document: Document, indent: str) -> Iterator[str]:
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}:"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{key}: {_scalar(value)}"


def _scalar(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_scalar, value))}]"
    # JSON's scalars are YAML's; quotes keep a text from being read as a number or a flag.
    return json.dumps(value)
