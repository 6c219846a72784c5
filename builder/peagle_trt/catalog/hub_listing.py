"""What a repository of the hub holds, with nothing in the answer believed before it is checked.

Names, hashes and the commit become paths in the cache, so a hub that lies could otherwise write anywhere.
"""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from peagle_trt.catalog.entries import HubRepository
from peagle_trt.errors import CheckpointError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

# Data that is parsed and never run; pickles (`*.bin`, `*.pt`) and code (`*.py`) are not asked for, whatever the entry.
_SUFFIXES = (".safetensors", ".json", ".jinja", ".gguf")
_NAMES = ("tokenizer.model", "merges.txt", "vocab.txt")
COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MAX_FILES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """A file of a repository.

    Attributes:
        name: Its name in the top folder.
        size_bytes: Its size.
        digest: Hex digest that it must have: SHA-256 of a large file's content, git's object id of a small one.
    """

    name: str
    size_bytes: int
    digest: str

    @property
    def is_large(self) -> bool:
        """Whether it is stored apart from git, under its SHA-256."""
        return len(self.digest) == 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A repository at one commit.

    Attributes:
        commit: Hex id.
        files: The files wanted; small ones first, so that what is wrong with a configuration is found out early.
    """

    commit: str
    files: tuple[HubFile, ...]


def list_repository(api: HfApi, source: HubRepository) -> Listing:
    """Ask the hub what a repository holds.

    Raises:
        CheckpointError: The answer names files outside the repository, makes no sense, or lacks what a checkpoint has.
    """
    commit = api.model_info(source.repository, revision=source.revision).sha
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise _nonsense(source, f"the commit `{commit}`")
    listed = api.list_repo_tree(source.repository, revision=commit, recursive=False)
    files = {file.name: file for file in _read_files(source, itertools.islice(listed, _MAX_FILES))}
    if "config.json" not in files or not any(name.endswith(".safetensors") for name in files):
        raise CheckpointError(
            f"`{source.repository}` at `{source.revision}` holds no `config.json` with safetensors",
            hint="choose another revision, or give a folder of your own",
        )
    return Listing(commit=commit, files=tuple(sorted(files.values(), key=lambda file: (file.is_large, file.name))))


def is_wanted(source: HubRepository, name: str) -> bool:
    """Whether a file is asked for; what lies in a folder or could run code never is."""
    # The hub was asked for the top folder only, but need not answer so.
    is_data = "/" not in name and (name.endswith(_SUFFIXES) or name in _NAMES)
    return is_data and any(fnmatch.fnmatchcase(name, pattern) for pattern in source.files)


def _read_files(source: HubRepository, listed: Iterator[object]) -> Iterator[HubFile]:
    for item in listed:
        name, size_bytes = getattr(item, "path", None), getattr(item, "size", None)
        if not isinstance(name, str) or not _is_inside(name):
            raise _nonsense(source, f"the name `{name}`")
        if size_bytes is None or not is_wanted(source, name):
            continue
        large = getattr(item, "lfs", None)
        digest = large.sha256 if large is not None else getattr(item, "blob_id", None)
        pattern = _SHA256 if large is not None else COMMIT
        if not isinstance(digest, str) or not pattern.fullmatch(digest):
            raise _nonsense(source, f"the hash `{digest}` of `{name}`")
        if not isinstance(size_bytes, int) or size_bytes < 0:
            raise _nonsense(source, f"the size `{size_bytes}` of `{name}`")
        yield HubFile(name=name, size_bytes=size_bytes, digest=digest)


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    is_plain = name.isprintable() and "\\" not in name and ":" not in name
    return is_plain and bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def _nonsense(source: HubRepository, what: str) -> CheckpointError:
    return CheckpointError(
        f"the hub's listing of `{source.repository}` holds {what}, which cannot be",
        hint="check HF_ENDPOINT and the repository; nothing was written",
    )
