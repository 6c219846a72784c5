"""Targets known by name: one TOML file each, beside this module."""

from __future__ import annotations

import difflib
import tomllib
from importlib import resources
from pathlib import Path

import msgspec

from peagle_trt.errors import UsageError


class PackagedFolder(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="package", tag_field="kind"
):
    """A target or drafter that lies inside this package.

    Attributes:
        path: Folder, relative to `peagle_trt/catalog`.
    """

    path: str


class WheelFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="wheel", tag_field="kind"):
    """A target that is a file of a Python package.

    Attributes:
        requirement: What pip is asked for, version pinned.
        package: Import name of the package.
        file: The file inside it.
        sha256: Hex digest of the file.
        size_bytes: Size of the file.
    """

    requirement: str
    package: str
    file: str
    sha256: str
    size_bytes: int


class HubRepository(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="hub", tag_field="kind"):
    """A target or drafter in a repository of the Hugging Face hub.

    Attributes:
        repository: `owner/name`.
        revision: Branch, tag or commit.
        licence: SPDX name, or what is known of it.
        size_bytes: About what its weights take, or None where no source says.
        files: Patterns of the files wanted; only the top folder is looked at, for some repositories keep copies of
            their weights in other formats below it.
    """

    repository: str
    revision: str
    licence: str
    size_bytes: int | None = None
    files: tuple[str, ...] = ("*.safetensors", "*.json", "*.jinja")


Source = PackagedFolder | WheelFile | HubRepository


class CatalogEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A target and the drafter that ships for it.

    Attributes:
        name: As typed on the command line.
        summary: One line for people.
        licence: SPDX name of the target's licence.
        source: Where the target comes from, as a person would cite it.
        drafter_source: Where the drafter comes from.
        target: How to get the target.
        drafter: How to get the drafter.
        draft_tokens: K that serves this pair best.
        max_batch_size: Default of a build.
        max_sequence_length: Default of a build, in tokens.
    """

    name: str
    summary: str
    licence: str
    source: str
    drafter_source: str
    target: PackagedFolder | WheelFile | HubRepository
    drafter: PackagedFolder | HubRepository
    draft_tokens: int
    max_batch_size: int
    max_sequence_length: int


def catalog_folder() -> Path:
    """Folder that paths of the entries are relative to."""
    return Path(str(resources.files("peagle_trt.catalog")))


def list_entries() -> tuple[CatalogEntry, ...]:
    """Every entry, by name."""
    return tuple(_read(path) for path in sorted(catalog_folder().glob("*.toml")))


def has_entry(name: str) -> bool:
    """Whether a name is in the catalog."""
    return any(entry.name == name for entry in list_entries())


def find_entry(name: str) -> CatalogEntry:
    """An entry by name.

    Raises:
        UsageError: There is none; the message suggests a close name.
    """
    entries = {entry.name: entry for entry in list_entries()}
    if name not in entries:
        close = difflib.get_close_matches(name, entries, n=1)
        hint = f"did you mean `{close[0]}`? " if close else ""
        raise UsageError(f"`{name}` is no known target and no path", hint=f"{hint}known: {', '.join(entries)}")
    return entries[name]


def _read(path: Path) -> CatalogEntry:
    return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), CatalogEntry)
