"""Repositories of the Hugging Face hub: found in its cache, else downloaded into it with every hash checked."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from peagle_trt.catalog.entries import HubRepository
from peagle_trt.catalog.hub_errors import INSTALL_HINT, naming_hub_errors
from peagle_trt.catalog.hub_listing import COMMIT, HubFile, Listing, list_repository
from peagle_trt.catalog.hub_transfer import Transfer, link_into_snapshot, missing_bytes, receive
from peagle_trt.catalog.sizes import size_words
from peagle_trt.errors import MachineError, UsageError
from peagle_trt.files import naming_os_errors, require_free_space, write_text

_INDEX_FILE = "model.safetensors.index.json"
_SINGLE_FILE = "model.safetensors"
_REVISION = re.compile(r"[0-9A-Za-z_][0-9A-Za-z_.\-]*(/[0-9A-Za-z_][0-9A-Za-z_.\-]*)*")


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def find_repository(source: HubRepository) -> Path | None:
    """The folder of a repository that is complete in the hub's cache, or None; asks no network.

    Raises:
        UsageError: The revision is no name of one.
    """
    # It becomes a path in the cache.
    if not _REVISION.fullmatch(source.revision):
        raise UsageError(f"`{source.revision}` is no revision", hint="give a branch, a tag or a commit")
    if not _has_library():
        return None
    folder = _cache_folder(source)
    reference = folder / "refs" / source.revision
    commit = reference.read_text(errors="replace").strip() if reference.is_file() else source.revision
    snapshot = folder / "snapshots" / commit
    return snapshot if COMMIT.fullmatch(commit) and _is_complete(snapshot) else None


def fetch_repository(
    source: HubRepository,
    *,
    remedy: str,
    report: Callable[[str], None],
    check: Callable[[Path], object] | None = None,
) -> Path:
    """The folder of a repository, downloaded first where the cache lacks any of it.

    Args:
        source: The repository.
        remedy: How to bring it here by other means, for errors.
        report: Told what is downloaded and how far it is.
        check: Called with the folder when all small files are there, before the first large one is asked for; what it
            raises ends the download.

    Raises:
        MachineError: It is not here and cannot be downloaded, or the disk is too small.
        CheckpointError: What the hub says or sends cannot be right.
        UsageError: There is no such revision.
    """
    found = find_repository(source)
    if found is not None:
        return found
    _require_library(source, remedy)
    from huggingface_hub import HfApi, constants

    folder = _cache_folder(source)
    # The inner one sees an error first, and leaves the disk's to the outer one.
    with naming_os_errors(folder), naming_hub_errors(source, remedy=remedy):
        listing = list_repository(HfApi(endpoint=constants.ENDPOINT), source)
        _announce(source, listing, folder, report)
        snapshot = folder / "snapshots" / listing.commit
        for file in listing.files:
            if file.is_large and check is not None:
                check(snapshot)
                check = None
            blob = receive(file, _transfer(source, listing, file, folder, report))
            link_into_snapshot(blob, snapshot / file.name)
        # Written last: from here on the cache's other users find the revision, and find it whole.
        write_text(folder / "refs" / source.revision, listing.commit)
    return snapshot


def _has_library() -> bool:
    return importlib.util.find_spec("huggingface_hub") is not None


def _cache_folder(source: HubRepository) -> Path:
    """The repository's folder in the cache.

    Source: huggingface_hub, guide "Understand caching".
    """
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"models--{source.repository.replace('/', '--')}"


def _is_complete(folder: Path) -> bool:
    if not (folder / "config.json").exists():
        return False
    index_path = folder / _INDEX_FILE
    if not index_path.exists():
        return (folder / _SINGLE_FILE).exists()
    try:
        index = msgspec.json.decode(index_path.read_bytes(), type=_Index)
    except (OSError, msgspec.DecodeError, RecursionError):
        # Complete or not, it is damaged; the reader says how.
        return True
    return all((folder / Path(name).name).exists() for name in index.weight_map.values())


def _require_library(source: HubRepository, remedy: str) -> None:
    if not _has_library():
        raise MachineError(
            f"`{source.repository}` is not here, and downloading it needs the package huggingface_hub",
            hint=f"{INSTALL_HINT}; without a network, {remedy}",
        )


def _announce(source: HubRepository, listing: Listing, folder: Path, report: Callable[[str], None]) -> None:
    needed = sum(missing_bytes(folder, file) for file in listing.files)
    total = sum(file.size_bytes for file in listing.files)
    try:
        require_free_space(folder, needed)
    except MachineError as error:
        raise MachineError(error.message, hint="free some space, or point HF_HOME at a larger disk") from error
    report(
        f"downloading `{source.repository}` at {source.revision}, commit {listing.commit[:12]}: "
        f"{size_words(needed)} of {size_words(total)} to `{folder}`"
    )


def _transfer(
    source: HubRepository, listing: Listing, file: HubFile, folder: Path, report: Callable[[str], None]
) -> Transfer:
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    url = hf_hub_url(source.repository, file.name, revision=listing.commit, endpoint=constants.ENDPOINT)
    lock_path = folder.parent / ".locks" / folder.name / f"{file.digest}.lock"
    return Transfer(url=url, headers=build_hf_headers(), folder=folder, lock_path=lock_path, report=report)
