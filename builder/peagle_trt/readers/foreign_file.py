"""Files of a foreign checkpoint, opened only where they are files."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from peagle_trt.errors import CheckpointError


@contextlib.contextmanager
def open_foreign(path: Path) -> Iterator[BinaryIO]:
    """Open a file to read.

    Raises:
        CheckpointError: It is absent, cannot be read, or is a folder, a pipe or a device, which might never end.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise CheckpointError(
                f"`{path}` is a folder, a pipe or a device, not a file",
                hint="give the folder that holds the checkpoint",
            )
        with path.open("rb") as file:
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
        return file.read()


def read_foreign_text(path: Path) -> str:
    """Content of a UTF-8 file.

    Raises:
        CheckpointError: It cannot be read, or is not UTF-8.
    """
    try:
        return read_foreign(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"`{path}` is not UTF-8: {error}", hint="fetch the file again") from error
