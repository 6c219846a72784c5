"""Files of a foreign checkpoint, opened only where they are files."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from peagle_trt.errors import CheckpointError

MAX_TEXT_BYTES = 100_000_000
"""Of a configuration, an index or a tokenizer; published ones have up to 40 million."""
_POINTER = b"version https://git-lfs"
"""How a file begins that stands for a large one. Source: git-lfs, `docs/spec.md`."""


@contextlib.contextmanager
def open_foreign(path: Path) -> Iterator[BinaryIO]:
    """Open a file to read.

    Raises:
        CheckpointError: It is absent, empty, cannot be read, is a folder, a pipe or a device, which might never end, or
            is what git-lfs leaves in place of a large file.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(
                f"`{path}` is a folder, a pipe or a device, not a file",
                hint="give the folder that holds the checkpoint",
            )
        # Windows into the kernel say so too, and reading one may never end.
        if status.st_size == 0:
            raise CheckpointError(f"cannot read `{path}`: it is empty", hint="fetch the file again")
        with path.open("rb") as file:
            if file.read(len(_POINTER)) == _POINTER:
                raise CheckpointError(
                    f"`{path}` is a pointer of git-lfs, not the file itself", hint="fetch it: git lfs pull"
                )
            file.seek(0)
            yield file
    except FileNotFoundError:
        raise CheckpointError(f"`{path}` does not exist", hint="give the folder that holds the checkpoint") from None
    except OSError as error:
        raise CheckpointError(f"cannot read `{path}`: {error}", hint="fetch the file again") from error


def read_foreign(path: Path) -> bytes:
    """Content of a file.

    Raises:
        CheckpointError: It cannot be read.
    """
    with open_foreign(path) as file:
        content = file.read(MAX_TEXT_BYTES + 1)
    if len(content) > MAX_TEXT_BYTES:
        raise CheckpointError(f"`{path}` is larger than {MAX_TEXT_BYTES:,} bytes", hint="fetch the file again")
    return content


def read_foreign_text(path: Path) -> str:
    """Content of a UTF-8 file.

    Raises:
        CheckpointError: It cannot be read, or is not UTF-8.
    """
    try:
        return read_foreign(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"`{path}` is not UTF-8: {error}", hint="fetch the file again") from error
