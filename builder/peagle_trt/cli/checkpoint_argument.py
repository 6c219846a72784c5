"""A checkpoint as typed: a catalog name or a path."""

from __future__ import annotations

from pathlib import Path

import click

from peagle_trt import catalog
from peagle_trt.errors import UsageError


class _NameOrPath(click.ParamType):  # type: ignore[type-arg]  # Generic from click 8.4 on only.
    """Text that can mean a checkpoint; the empty one, which `Path` takes for the working directory, cannot."""

    name = "name|path"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse what names nothing."""
        if not value.strip() or "\0" in value:
            self.fail("it is empty" if not value.strip() else "it holds a NUL character", param, ctx)
        return value


NAME_OR_PATH = _NameOrPath()

mask_token_option = click.option(
    "--mask-token-id",
    type=click.IntRange(min=0),
    help="Token of the masked slots, for a head whose config.json does not say; its trainer knows it.",
)
"""Adds `--mask-token-id N` to a command that reads a head."""


revision_option = click.option(
    "--revision", metavar="REV", help="Branch, tag or commit of the target on the hub; by default the catalog entry's."
)


def find_target(name_or_path: str, *, revision: str | None = None) -> Path:
    """Where a target lies; a catalog's one is fetched.

    Raises:
        UsageError: It is neither a path nor a catalog name, or a path that a revision is given for.
    """
    path = Path(name_or_path)
    if not path.exists():
        return catalog.target_path(catalog.find_entry(name_or_path), revision=revision)
    refuse_revision(revision, "--revision", path)
    return path


def find_drafter(name_or_path: str) -> Path:
    """Where a drafter lies; a catalog name means the drafter that ships for it.

    Raises:
        UsageError: It is neither a path nor a catalog name.
    """
    path = Path(name_or_path)
    return path if path.exists() else catalog.drafter_path(catalog.find_entry(name_or_path))


def refuse_revision(revision: str | None, option: str, path: Path) -> None:
    """Refuse a revision of something that lies on this machine.

    Raises:
        UsageError: There is one.
    """
    if revision is not None:
        raise UsageError(f"{option} is for the hub, but `{path}` lies on this machine", hint=f"leave {option} out")


def download_document(download: catalog.Download) -> dict[str, object]:
    """A download for `--json`."""
    return {"role": download.role, "source": download.source, "size_bytes": download.size_bytes}


def download_text(download: catalog.Download) -> str:
    """A download for people."""
    size = "size not known" if download.size_bytes is None else f"about {catalog.size_words(download.size_bytes)}"
    return f"{download.role:<10} to download: {size}, {download.source}"
