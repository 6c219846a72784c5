"""One file from the hub into its cache: resumed where it stopped, and named only when its hash is right.

The hub's own library deletes what a broken download left and compares sizes only (2.4), and a shard has gigabytes; so
the file is received here, under a name of ours, and the cache's layout is kept.

Source: huggingface_hub, guide "Understand caching": `blobs/HASH`, and `snapshots/COMMIT/NAME` as links to it.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from peagle_trt.catalog.hub_errors import connection_errors
from peagle_trt.catalog.hub_listing import HubFile
from peagle_trt.catalog.sizes import size_words
from peagle_trt.errors import CheckpointError
from peagle_trt.files import link_or_copy

_CHUNK_BYTES = 1 << 22
_REPORT_SECONDS = 10.0
_PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Where a file comes from and goes to.

    Attributes:
        url: Its address.
        headers: Of the request; may hold a token.
        folder: The repository's folder in the cache.
        lock_path: File that one process at a time holds; the hub's own tools hold the same one.
        report: Told of progress, a line every ten seconds.
    """

    url: str
    headers: dict[str, str]
    folder: Path
    lock_path: Path
    report: Callable[[str], None]


def blob_path(folder: Path, file: HubFile) -> Path:
    """Where a file's content lies in the cache."""
    return folder / "blobs" / file.digest


def missing_bytes(folder: Path, file: HubFile) -> int:
    """What is still to be received of a file."""
    if blob_path(folder, file).exists():
        return 0
    partial = _partial_path(folder, file)
    return max(0, file.size_bytes - (partial.stat().st_size if partial.exists() else 0))


def receive(file: HubFile, transfer: Transfer) -> Path:
    """Bring a file's content into the cache, or check the content that is there.

    Returns:
        The blob; its hash is right.

    Raises:
        CheckpointError: What came has another hash; it is removed.
        OSError: The disk is full; what came so far stays for the next try.
    """
    from huggingface_hub.utils import WeakFileLock

    blob = blob_path(transfer.folder, file)
    blob.parent.mkdir(parents=True, exist_ok=True)
    transfer.lock_path.parent.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(transfer.lock_path):
        if blob.exists():
            if _digest(blob, file) == file.digest:
                return blob
            transfer.report(f"`{blob}` is damaged; fetching `{file.name}` again")
            blob.unlink()
        partial = _partial_path(transfer.folder, file)
        _download(file, transfer, partial)
        found = _digest(partial, file)
        if found != file.digest:
            partial.unlink()
            raise CheckpointError(
                f"`{file.name}` arrived damaged: expected hash `{file.digest}`, found `{found}`",
                hint="it was removed; run the command again, and mistrust the network if that does not help",
            )
        partial.replace(blob)
    return blob


def link_into_snapshot(blob: Path, snapshot_path: Path) -> None:
    """Make a blob appear in a snapshot under its file's name."""
    snapshot_path.parent.mkdir(parents=True, exist_ok=True)
    link = snapshot_path.with_name(f".{snapshot_path.name}.{os.getpid()}")
    try:
        link.symlink_to(os.path.relpath(blob, link.parent))
    except OSError:
        # A file system without symbolic links; a hard link takes no space either.
        link_or_copy(blob, link)
    link.replace(snapshot_path)


def _partial_path(folder: Path, file: HubFile) -> Path:
    return folder / "blobs" / f"{file.digest}.peagle-trt.incomplete"


def _download(file: HubFile, transfer: Transfer, partial: Path) -> None:
    """Append to the partial file until it is whole; a connection that breaks after some progress is opened again."""
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import silent_tqdm

    while True:
        start = partial.stat().st_size if partial.exists() else 0
        try:
            with partial.open("ab") as stream:
                # Not by Xet, the hub's other transport: the library keeps nothing of a file that it was interrupted in.
                http_get(
                    transfer.url,
                    _Sink(stream, file, transfer.report),
                    resume_size=start,
                    headers=transfer.headers,
                    expected_size=file.size_bytes,
                    tqdm_class=silent_tqdm,
                )
            return
        except connection_errors():
            if partial.stat().st_size <= start:
                raise
            time.sleep(_PAUSE_SECONDS)


class _Sink:
    """The file being received: refuses more bytes than were announced, and says how far it is."""

    def __init__(self, stream: BinaryIO, file: HubFile, report: Callable[[str], None]) -> None:
        self._stream = stream
        self._file = file
        self._report = report
        self._reported_at = time.monotonic()
        self._reported_bytes = stream.tell()

    def write(self, chunk: bytes) -> int:
        """Append."""
        if self._stream.tell() + len(chunk) > self._file.size_bytes:
            raise CheckpointError(
                f"the hub sends more than the {self._file.size_bytes:,} bytes it announced for `{self._file.name}`",
                hint="check HF_ENDPOINT and the repository",
            )
        count = self._stream.write(chunk)
        self._report_progress()
        return count

    def tell(self) -> int:
        """Bytes received."""
        return self._stream.tell()

    def seek(self, position: int) -> int:
        """Go back, where the hub starts again from the first byte."""
        return self._stream.seek(position)

    def truncate(self) -> int:
        """Drop what follows."""
        return self._stream.truncate()

    def _report_progress(self) -> None:
        seconds, received = time.monotonic() - self._reported_at, self._stream.tell()
        if seconds < _REPORT_SECONDS:
            return
        rate = max(0, received - self._reported_bytes) / seconds
        self._report(
            f"`{self._file.name}`: {size_words(received)} of {size_words(self._file.size_bytes)}, {size_words(rate)}/s"
        )
        self._reported_at, self._reported_bytes = time.monotonic(), received


def _digest(path: Path, file: HubFile) -> str:
    digest = hashlib.sha256() if file.is_large else hashlib.sha1(usedforsecurity=False)
    if not file.is_large:
        # Source: git's object format, which a blob's id is the hash of.
        digest.update(f"blob {path.stat().st_size}\0".encode())
    with path.open("rb") as content:
        while chunk := content.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
