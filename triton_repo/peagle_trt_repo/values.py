"""Plain values out of the tensors of one request; whoever sends another kind or number of them is told which tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[np.generic]]
"""Tensors by name, as sent: [1, n], or [n] where the batch dimension is already gone."""


class InvalidRequestError(ValueError):
    """A client's fault; the message names the tensor."""


def read_text(arrays: Arrays, name: str) -> str:
    """The one text of a required tensor.

    Raises:
        InvalidRequestError: It is missing, or not UTF-8.
    """
    texts = read_texts(arrays, name)
    if not texts:
        raise InvalidRequestError(f"`{name}` is missing")
    return texts[0]


def read_texts(arrays: Arrays, name: str) -> tuple[str, ...]:
    """The texts of a tensor; empty when it is absent.

    Raises:
        InvalidRequestError: One is not UTF-8.
    """
    raw_texts: list[bytes] = arrays[name].reshape(-1).tolist() if name in arrays else []
    try:
        return tuple(raw.decode("utf-8") for raw in raw_texts)
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"`{name}` is not valid UTF-8: {error}") from error


def read_flag(arrays: Arrays, name: str) -> bool | None:
    """The flag of an optional tensor; None when it is absent.

    Raises:
        InvalidRequestError: There is more than one value.
    """
    value = _single(arrays, name)
    return None if value is None else bool(value)


def read_integers(arrays: Arrays, name: str) -> tuple[int, ...]:
    """The integers of a tensor; empty when it is absent."""
    return tuple(int(value) for value in arrays[name].reshape(-1).tolist()) if name in arrays else ()


def read_integer(arrays: Arrays, name: str, minimum: int) -> int | None:
    """The integer of an optional tensor; None when it is absent.

    Raises:
        InvalidRequestError: It is below `minimum`, or there is more than one.
    """
    value = _single(arrays, name)
    if value is None:
        return None
    number = int(value)  # type: ignore[call-overload]
    if number < minimum:
        raise InvalidRequestError(f"`{name}` is `{number}`, expected {minimum} or more")
    return int(number)


def read_required_integer(arrays: Arrays, name: str, minimum: int) -> int:
    """The integer of a required tensor.

    Raises:
        InvalidRequestError: It is missing, below `minimum`, or there is more than one.
    """
    value = read_integer(arrays, name, minimum)
    if value is None:
        raise InvalidRequestError(f"`{name}` is missing")
    return value


def read_either_integer(arrays: Arrays, name: str, old_name: str) -> int | None:
    """The integer, 0 or more, of a tensor that has two names.

    Raises:
        InvalidRequestError: Both were sent, and they differ.
    """
    value, old_value = read_integer(arrays, name, 0), read_integer(arrays, old_name, 0)
    if value is not None and old_value is not None and value != old_value:
        raise InvalidRequestError(f"`{name}` is `{value}` and `{old_name}` is `{old_value}`; send one of them")
    return old_value if value is None else value


def read_real(arrays: Arrays, name: str, default: float) -> float:
    """The finite number of an optional tensor.

    Raises:
        InvalidRequestError: It is not finite, or there is more than one.
    """
    value = _single(arrays, name)
    if value is None:
        return default
    number = float(value)  # type: ignore[arg-type]
    if not math.isfinite(number):
        raise InvalidRequestError(f"`{name}` is `{number}`, expected a finite number")
    return number


def read_positive(arrays: Arrays, name: str, default: float) -> float:
    """The same for a number that must be more than 0."""
    value = read_real(arrays, name, default)
    if value <= 0.0:
        raise InvalidRequestError(f"`{name}` is `{value:g}`, expected more than 0")
    return value


def read_reals(arrays: Arrays, name: str) -> list[float]:
    """The finite numbers of a tensor; empty when it is absent.

    Raises:
        InvalidRequestError: One is not finite.
    """
    values = [float(value) for value in arrays[name].reshape(-1).tolist()] if name in arrays else []
    if not all(math.isfinite(value) for value in values):
        raise InvalidRequestError(f"`{name}` holds a value that is not finite")
    return values


def _single(arrays: Arrays, name: str) -> object | None:
    if name not in arrays:
        return None
    values: list[object] = arrays[name].reshape(-1).tolist()
    if len(values) != 1:
        raise InvalidRequestError(f"`{name}` holds {len(values)} values, expected 1")
    return values[0]
