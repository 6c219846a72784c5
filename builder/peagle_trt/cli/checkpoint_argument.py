"""A checkpoint as typed: a catalog name or a path."""

from __future__ import annotations

from pathlib import Path

import click

from peagle_trt import catalog


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


def find_target(name_or_path: str) -> Path:
    """Where a target lies; a catalog's one is fetched.

    Raises:
        UsageError: It is neither a path nor a catalog name.
    """
    path = Path(name_or_path)
    return path if path.exists() else catalog.target_path(catalog.find_entry(name_or_path))


def find_drafter(name_or_path: str) -> Path:
    """Where a drafter lies; a catalog name means the drafter that ships for it.

    Raises:
        UsageError: It is neither a path nor a catalog name.
    """
    path = Path(name_or_path)
    return path if path.exists() else catalog.drafter_path(catalog.find_entry(name_or_path))
