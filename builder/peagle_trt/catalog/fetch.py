"""Brings a catalog entry's target and drafter onto this machine, and says what that would take."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from peagle_trt.catalog.entries import CatalogEntry, HubRepository, PackagedFolder, Source, WheelFile, catalog_folder
from peagle_trt.catalog.hub import fetch_repository, find_repository
from peagle_trt.catalog.wheel import fetch_wheel_file, find_wheel_file
from peagle_trt.errors import MachineError, UsageError

logger = logging.getLogger(__name__)

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """A part of an entry that is not on this machine.

    Attributes:
        role: `target` or `drafter`.
        source: What would be fetched.
        size_bytes: About how much, or None where no source says.
    """

    role: str
    source: str
    size_bytes: int | None


def target_path(
    entry: CatalogEntry,
    *,
    revision: str | None = None,
    report: Report = logger.warning,
    check: Callable[[Path], object] | None = None,
) -> Path:
    """Path of an entry's target, downloaded first where it is not here yet.

    Args:
        entry: The entry.
        revision: Revision of a hub's repository instead of the entry's.
        report: Told what is downloaded and how far it is.
        check: Called with the folder before a hub's large files are asked for; what it raises ends the download.

    Raises:
        MachineError: It has to be downloaded, and cannot be.
        CheckpointError: What came, or lies here, is not what the catalog or the hub means.
        UsageError: A revision is given, and there is none such.
    """
    entry = msgspec.structs.replace(entry, target=_at(entry, entry.target, revision))
    return _fetch(entry, entry.target, report, check)


def drafter_path(entry: CatalogEntry, *, revision: str | None = None, report: Report = logger.warning) -> Path:
    """Folder of an entry's drafter; as `target_path`."""
    entry = msgspec.structs.replace(entry, drafter=_at(entry, entry.drafter, revision))
    return _fetch(entry, entry.drafter, report)


def missing_target(entry: CatalogEntry, *, revision: str | None = None) -> Download | None:
    """What `target_path` would download; asks no network."""
    return _missing(entry, "target", _at(entry, entry.target, revision))


def missing_drafter(entry: CatalogEntry, *, revision: str | None = None) -> Download | None:
    """What `drafter_path` would download; asks no network."""
    return _missing(entry, "drafter", _at(entry, entry.drafter, revision))


def has_drafter(entry: CatalogEntry) -> bool:
    """Whether there is a drafter to be had; an installation may lack the one inside this package."""
    return not isinstance(entry.drafter, PackagedFolder) or _is_packaged(entry.drafter)


def _at(entry: CatalogEntry, source: Source, revision: str | None) -> Source:
    if revision is None:
        return source
    if not isinstance(source, HubRepository):
        raise UsageError(f"`{entry.name}` comes in one revision only", hint="leave the revision out")
    return msgspec.structs.replace(source, revision=revision)


def _missing(entry: CatalogEntry, role: str, source: Source) -> Download | None:
    match source:
        case PackagedFolder():
            return None
        case WheelFile():
            is_here = find_wheel_file(entry.name, source) is not None
            return None if is_here else Download(role=role, source=source.requirement, size_bytes=source.size_bytes)
        case HubRepository():
            is_here = find_repository(source) is not None
            named = f"{source.repository} at {source.revision}"
            return None if is_here else Download(role=role, source=named, size_bytes=source.size_bytes)


def _fetch(entry: CatalogEntry, source: Source, report: Report, check: Callable[[Path], object] | None = None) -> Path:
    match source:
        case PackagedFolder():
            return _packaged_path(entry, source)
        case WheelFile():
            return fetch_wheel_file(entry.name, source, report=report)
        case HubRepository():
            return fetch_repository(source, remedy=_remedy(entry), report=report, check=check)


def _packaged_path(entry: CatalogEntry, source: PackagedFolder) -> Path:
    if not _is_packaged(source):
        part = "drafter" if source == entry.drafter else "target"
        raise MachineError(
            f"this installation carries no {part} for `{entry.name}`",
            hint="give one with --drafter, or train one" if part == "drafter" else "install the package again",
        )
    return catalog_folder() / source.path


def _is_packaged(source: PackagedFolder) -> bool:
    return (catalog_folder() / source.path / "config.json").exists()


def _remedy(entry: CatalogEntry) -> str:
    """The commands that bring an entry here by way of another machine."""
    downloads = [_download_command(source) for source in (entry.target, entry.drafter)]
    arguments = [f"--target {entry.name}"]
    for option, source in (("--target-path", entry.target), ("--drafter", entry.drafter)):
        if isinstance(source, HubRepository):
            arguments.append(f"{option} {_folder_name(source)}")
    commands = " and ".join(f"`{command}`" for command in downloads if command)
    return (
        f"run {commands} on a machine that reaches the hub, copy the folders here, "
        f"then `peagle-trt build {' '.join(arguments)}`"
    )


def _download_command(source: Source) -> str:
    if not isinstance(source, HubRepository):
        return ""
    # Folders below hold copies of the weights in other formats.
    folder = _folder_name(source)
    return f'hf download {source.repository} --revision {source.revision} --exclude "*/*" --local-dir {folder}'


def _folder_name(source: HubRepository) -> str:
    return source.repository.rpartition("/")[2]
