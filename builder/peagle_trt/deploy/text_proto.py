"""Writes protobuf's text format: as much of it as a config.pbtxt needs, without a dependency on protobuf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias


class Symbol(str):
    """A name that is written without quotes, such as `TYPE_INT32`."""

    __slots__ = ()


Value: TypeAlias = "bool | int | str | Symbol | Mapping[str, Value] | Sequence[Value]"


def write_message(message: Mapping[str, Value]) -> str:
    """A message in text format.

    Args:
        message: Fields in order; a sequence repeats its field, a mapping is a message.
    """
    return "".join(f"{line}\n" for name, value in message.items() for line in _field_lines(name, value))


def _field_lines(name: str, value: Value) -> list[str]:
    if isinstance(value, Mapping):
        body = [f"  {line}" for key, entry in value.items() for line in _field_lines(key, entry)]
        return [f"{name} {{", *body, "}"]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [line for entry in value for line in _field_lines(name, entry)]
    return [f"{name}: {_scalar(value)}"]


def _scalar(value: bool | int | str | Symbol) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Symbol):
        return str(value)
    return str(value) if isinstance(value, int) else _quoted(value)


def _quoted(text: str) -> str:
    # Octal escapes of UTF-8 bytes are the one spelling that every reader of the format accepts.
    return '"' + "".join(_escaped(byte) for byte in text.encode("utf-8")) + '"'


def _escaped(byte: int) -> str:
    if byte in b'"\\':
        return "\\" + chr(byte)
    return chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}"
