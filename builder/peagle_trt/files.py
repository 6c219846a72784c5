"""Files that are either whole or absent: staging and renaming, hashes, room on a disk."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from peagle_trt.errors import MachineError, UsageError

SAMPLED_FROM_BYTES = 1 << 30
"""Files of this size are told apart by `sampled_sha256_of`: SHA-256 reads about 1 GB a second on a core of 2026, and a
build of 65 GB must neither take a minute to record nor a minute to find unchanged."""
SAMPLE_STEP_BYTES = 1 << 24
_SAMPLE_BYTES = 1 << 12
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
    errno.EFBIG: ("the file would be larger than is allowed", "raise the limit of file sizes (`ulimit -f`)"),
    errno.ELOOP: ("its links lead in a circle", "check the links"),
    errno.ENOTEMPTY: ("the folder is not empty", "choose another folder"),
    errno.EBUSY: ("another file system is mounted there, or it is in use", "choose another folder"),
    errno.EXDEV: ("it lies on another file system", "choose another folder"),
    errno.ENOENT: ("a part of the path does not exist", "check the path"),
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
        # Of a copy the second name is where it went, and only that can be full.
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        found = (error.filename2 if is_full else None) or error.filename or path
        raise MachineError(f"cannot use `{found}`: {reason}", hint=hint) from error


def resolve_output(path: Path) -> Path:
    """The folder that a path means, for whoever puts a finished one in its place: links followed, no `.` and `..`.

    Raises:
        UsageError: It leads nowhere, or means a folder that no rename can replace.
    """
    try:
        resolved, here = path.resolve(), Path.cwd()
        is_mounted = resolved.is_mount()
    except (OSError, RuntimeError, ValueError) as error:
        # A circle of links, a working folder that is gone, a zero byte.
        raise UsageError(f"`{path}` leads nowhere: {error}", hint="name another folder with -o") from error
    if here.is_relative_to(resolved):
        raise UsageError(
            f"`{path}` is the folder you are in, or one around it; what is written replaces its folder as a whole",
            hint=f"name a folder inside it: -o {path / 'out'}",
        )
    if is_mounted:
        raise UsageError(
            f"a file system is mounted on `{path}`, and what is written replaces its folder as a whole",
            hint=f"name a folder inside it: -o {path / 'out'}",
        )
    return resolved


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


@contextlib.contextmanager
def locked_folder(path: Path, busy: str) -> Iterator[None]:
    """A folder, made where it is missing, that one process at a time works in.

    What was made is taken away again when the work fails and leaves nothing in it.

    Args:
        path: The folder.
        busy: What to say while another process has it.

    Raises:
        MachineError: Another process has it, or it cannot be made.
    """
    with naming_os_errors(path):
        is_new = not path.exists()
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MachineError(busy, hint="wait for it, or choose another folder") from None
        # Who had it may have renamed or removed it since it was opened here.
        if not path.exists() or not os.path.samestat(path.stat(), os.fstat(descriptor)):
            raise MachineError(busy, hint="it has just ended: start again")
        try:
            yield
        except BaseException:
            if is_new:
                _remove_empty(path, descriptor)
            raise
    finally:
        os.close(descriptor)


def _remove_empty(path: Path, descriptor: int) -> None:
    """Take away a folder that is still locked here and in which nothing waits for another run."""
    with contextlib.suppress(OSError):
        if os.path.samestat(path.stat(), os.fstat(descriptor)):
            path.rmdir()


def require_writable(path: Path) -> None:
    """Refuse a file that could not be written, before the work whose result it is to hold.

    Raises:
        MachineError: Its folder cannot be written, or the path is a folder.
    """
    partial = path.with_name(f".{path.name}.partial")
    with naming_os_errors(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.touch()
        partial.unlink()


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


def sampled_sha256_of(path: Path) -> str:
    """Hex digest of a file's size, its start and a sample of every `SAMPLE_STEP_BYTES`: 4 KiB instead of 16 MiB.

    It tells one checkpoint's shard from another's, and notices one that is cut short, filled up with zeros or written
    again by other software. A single flipped bit it will hardly ever notice.

    Raises:
        MachineError: The file cannot be read.
    """
    with naming_os_errors(path), path.open("rb") as file:
        size_bytes = path.stat().st_size
        digest = hashlib.sha256(size_bytes.to_bytes(8, "little"))
        digest.update(file.read(_CHUNK_BYTES))
        for offset in range(_CHUNK_BYTES, size_bytes, SAMPLE_STEP_BYTES):
            file.seek(offset)
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def require_free_space(folder: Path, needed_bytes: int) -> None:
    """Refuse before the first byte is written when the disk cannot hold what is coming.

    Args:
        folder: Where the files will go; need not exist yet.
        needed_bytes: What will be written.

    Raises:
        MachineError: The disk has less room.
    """
    with naming_os_errors(folder):
        free_bytes = shutil.disk_usage(_existing_parent(folder)).free
    if free_bytes < needed_bytes:
        raise MachineError(
            f"`{folder}` needs {needed_bytes:,} bytes, but its disk has {free_bytes:,} free",
            hint="free some space, or choose another folder",
        )


def shares_file_system(path: Path, folder: Path) -> bool:
    """Whether a file and a folder, which need not exist yet, lie where one can be linked into the other."""
    return path.stat().st_dev == _existing_parent(folder).stat().st_dev


def try_link(source: Path, destination: Path) -> bool:
    """Make a file appear a second time without a second copy of its bytes.

    Returns:
        Whether the file system allowed it: it does not across devices, nor, on many systems, for another user's file.

    Raises:
        MachineError: The destination's folder cannot be written.
    """
    with naming_os_errors(destination):
        destination.parent.mkdir(parents=True, exist_ok=True)
        destination.unlink(missing_ok=True)
        try:
            os.link(source, destination)
        except OSError:
            return False
    return True


def link_or_copy(source: Path, destination: Path) -> None:
    """Make a file appear a second time, without a second copy of its bytes where the file system allows it."""
    if not try_link(source, destination):
        with naming_os_errors(destination):
            shutil.copyfile(source, destination)


def remove_folder(path: Path) -> None:
    """Delete a folder and everything in it; one that is not there is fine."""
    with naming_os_errors(path), contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def remove_leftover(path: Path) -> None:
    """Delete what another run, or somebody, left under a name: a file, a link or a folder."""
    if path.is_dir() and not path.is_symlink():
        remove_folder(path)
        return
    with naming_os_errors(path):
        path.unlink()


def _existing_parent(folder: Path) -> Path:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
