"""Files that are either whole or absent: staging and renaming, hashes, room on a disk."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from peagle_trt.errors import MachineError

_CHUNK_BYTES = 1 << 22
_OS_REASONS = {
    errno.ENOSPC: ("no space is left on the disk", "free some space, or choose another folder"),
    errno.EDQUOT: ("the disk quota is used up", "free some space, or choose another folder"),
    errno.EACCES: ("permission is denied", "choose a folder that you may write to"),
    errno.EPERM: ("the operation is not permitted", "choose a folder that you may write to"),
    errno.EROFS: ("the file system is read-only", "choose a folder on another file system"),
    errno.ENOTDIR: ("a part of the path is a file, not a folder", "check the path"),
    errno.EEXIST: ("something of another kind has that name", "remove it, or choose another folder"),
    errno.EISDIR: ("the path is a folder, not a file", "check the path"),
    errno.ENAMETOOLONG: ("the name is too long", "choose a shorter name"),
    errno.EMFILE: ("too many files are open", "raise the limit of open files (`ulimit -n`)"),
}


@contextlib.contextmanager
def naming_os_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system refuses into an error that names the path and the remedy.

    Raises:
        MachineError: The body raised an `OSError` that a user can mend.
    """
    try:
        yield
    except OSError as error:
        reason, hint = _OS_REASONS.get(error.errno or 0, ("", ""))
        if not reason:
            raise
        raise MachineError(f"cannot use `{error.filename or path}`: {reason}", hint=hint) from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A binary file that appears under `path` only when the body ends without an exception.

    Raises:
        MachineError: The disk is full, or the folder cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial")
    with naming_os_errors(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                yield file
            partial.replace(path)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file in one piece.

    Raises:
        MachineError: The disk is full, or the folder cannot be written.
    """
    with replacing(path) as file:
        file.write(text.encode())


def sha256_of(path: Path) -> str:
    """Hex digest of a file's content, read in chunks.

    Raises:
        MachineError: The file cannot be read.
    """
    with naming_os_errors(path), path.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def require_free_space(folder: Path, needed_bytes: int) -> None:
    """Refuse before the first byte is written when the disk cannot hold what is coming.

    Args:
        folder: Where the files will go; need not exist yet.
        needed_bytes: What will be written.

    Raises:
        MachineError: The disk has less room.
    """
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    with naming_os_errors(folder):
        free_bytes = shutil.disk_usage(existing).free
    if free_bytes < needed_bytes:
        raise MachineError(
            f"`{folder}` needs {needed_bytes:,} bytes, but its disk has {free_bytes:,} free",
            hint="free some space, or choose another folder",
        )


def link_or_copy(source: Path, destination: Path) -> None:
    """Make a file appear a second time, without a second copy of its bytes where the file system allows it."""
    with naming_os_errors(destination):
        destination.parent.mkdir(parents=True, exist_ok=True)
        destination.unlink(missing_ok=True)
        try:
            os.link(source, destination)
        except OSError:
            shutil.copyfile(source, destination)


def remove_folder(path: Path) -> None:
    """Delete a folder and everything in it; one that is not there is fine."""
    with naming_os_errors(path), contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)
