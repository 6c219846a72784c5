"""Mutations of foreign files, and what a reader may do with them: succeed, or refuse with the file's name."""

from __future__ import annotations

import resource
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from peagle_trt.errors import CheckpointError

T = TypeVar("T")

MAX_SECONDS = 60
"""For one small file; it takes milliseconds, on a busy machine too."""
MAX_GROWTH_BYTES = 400_000_000
"""Far above what a small file may cost, far below what one forged count would take."""
MAX_MESSAGE_CHARACTERS = 2_000


def examples(quick: int) -> Any:
    """Parametrizes a test by how many mutations it tries: few in every run, twenty times as many in a long proof."""
    return pytest.mark.parametrize("num_examples", [quick, pytest.param(20 * quick, marks=pytest.mark.slow)])


def fuzzed(num_examples: int) -> settings:
    """The same mutations on every run."""
    return settings(
        max_examples=num_examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@contextmanager
def bounded() -> Iterator[None]:
    """Fail on memory that small files have no right to, all of them together."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown_bytes < MAX_GROWTH_BYTES


@contextmanager
def ending() -> Iterator[None]:
    """Fail on a reader that hangs."""

    def give_up(number: int, frame: object) -> None:
        raise AssertionError(f"one file is read for over {MAX_SECONDS} seconds")

    previous = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(MAX_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def refuses_or_reads(read: Callable[[], T], named: Path) -> T | None:
    """What a reader makes of a file; None where it refuses it as it should."""
    try:
        # A warning of numpy's about numbers that overflow is a fault, too.
        with ending(), warnings.catch_warnings():
            warnings.simplefilter("error")
            return read()
    except CheckpointError as error:
        assert named.name in error.message
        assert len(error.message) <= MAX_MESSAGE_CHARACTERS
        return None


# Numbers at which something overflows: int32, int64, float64, and Python's limit of digits.
EDGES = [0, 1, -1, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), 10**30, 10**400]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(EDGES),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["\0", "\ud800", "../x", "/etc/passwd", "x" * 300, "\x1b[31m", "NaN"]),
)
JSON_VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=6,
)


def nested(depth: int) -> list[Any]:
    """A list in a list in a list."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def byte_mutations(content: bytes, *, header_bytes: int) -> st.SearchStrategy[bytes]:
    """Flipped, dropped, doubled and appended bytes, mostly within the header."""
    position = st.one_of(st.integers(0, max(0, header_bytes - 1)), st.integers(0, len(content) - 1))
    flip = st.tuples(position, st.integers(0, 255))
    flipped = st.lists(flip, min_size=1, max_size=4).map(lambda flips: _flip(content, flips))
    cut = st.integers(0, len(content)).map(lambda length: content[:length])
    dropped = st.tuples(position, st.integers(1, 16)).map(lambda gap: content[: gap[0]] + content[gap[0] + gap[1] :])
    doubled = st.tuples(position, st.integers(1, 64)).map(lambda part: _double(content, *part))
    appended = st.binary(min_size=1, max_size=16).map(lambda more: content + more)
    return st.one_of(flipped, cut, dropped, doubled, appended)


def _flip(content: bytes, flips: list[tuple[int, int]]) -> bytes:
    changed = bytearray(content)
    for position, value in flips:
        changed[position] = value
    return bytes(changed)


def _double(content: bytes, start: int, length: int) -> bytes:
    return content[: start + length] + content[start : start + length] + content[start + length :]


def key_mutations(document: Mapping[str, Any], more_keys: tuple[str, ...] = ()) -> st.SearchStrategy[dict[str, Any]]:
    """A document with one or two keys removed or replaced by anything."""
    key = st.sampled_from(sorted({*document, *more_keys}))
    change = st.tuples(key, st.one_of(st.just(_REMOVED), JSON_VALUES, st.sampled_from([200, 900, 990]).map(nested)))
    return st.lists(change, min_size=1, max_size=2).map(lambda changes: _change(document, changes))


_REMOVED = object()


def _change(document: Mapping[str, Any], changes: list[tuple[str, Any]]) -> dict[str, Any]:
    changed = dict(document) | dict(changes)
    return {key: value for key, value in changed.items() if value is not _REMOVED}
