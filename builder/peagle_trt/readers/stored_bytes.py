"""Copies of a checkpoint's bytes, for those that are looked at once.

A memory map costs the kernel several times as much as a read, and a file that is cut short under a map ends the
process. Checkpoints that memory cannot hold are read past the page cache: nothing of them would still be there at the
second reading, they would push out what others had cached, and finding pages costs the kernel more than reading does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from peagle_trt.errors import CheckpointError
from peagle_trt.spec import TensorSpec

_BLOCK_BYTES = 4096
"""A multiple of what any disk wants of addresses, places and lengths."""
_is_past_cache: ContextVar[bool] = ContextVar("is_past_cache", default=False)


@contextmanager
def reading_of(num_bytes: int) -> Iterator[None]:
    """Read what follows past the page cache if so many bytes would fill more than half of the machine's memory."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    token = _is_past_cache.set(num_bytes > memory_bytes // 2)
    try:
        yield
    finally:
        _is_past_cache.reset(token)


def read_bytes(spec: TensorSpec) -> NDArray[np.uint8]:
    """A copy of the stored bytes of a tensor.

    Raises:
        CheckpointError: The file is gone, or shorter than it was.
    """
    place = spec.location
    assert place is not None, "only a computed tensor lies nowhere"
    try:
        content = _read_directly(place.path, place.offset_bytes, place.length_bytes) if _is_past_cache.get() else None
        if content is None:
            content = np.fromfile(place.path, np.uint8, place.length_bytes, offset=place.offset_bytes)
    except OSError as error:
        raise CheckpointError(f"cannot read `{place.path}`: {error}", hint="fetch the checkpoint again") from error
    if content.size < place.length_bytes:
        raise CheckpointError(
            f"`{place.path}` ends within tensor `{spec.name}`: it was cut short since its header was read",
            hint="fetch the checkpoint again",
        )
    return content


def read_codes(spec: TensorSpec) -> NDArray[np.uint8]:
    """A copy of the stored bytes of a tensor of one-byte codes, in its shape; raises what `read_bytes` raises."""
    return read_bytes(spec).reshape(spec.shape)


def _read_directly(path: Path, start: int, length: int) -> NDArray[np.uint8] | None:
    """Bytes past the page cache, fewer at the end of a file; None where the file system has no such reading."""
    first = start // _BLOCK_BYTES * _BLOCK_BYTES
    wanted = start - first + length
    whole = -(-wanted // _BLOCK_BYTES) * _BLOCK_BYTES
    memory = np.empty(whole + _BLOCK_BYTES, np.uint8)
    shift = -memory.ctypes.data % _BLOCK_BYTES
    blocks = memory[shift : shift + whole]
    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except (AttributeError, OSError):
        return None
    try:
        done = 0
        while done < wanted and (read := os.preadv(file, [blocks[done:].data], first + done)):
            done += read
            if read % _BLOCK_BYTES:
                break
    except OSError:
        return None
    finally:
        os.close(file)
    return blocks[start - first : min(done, wanted)]
