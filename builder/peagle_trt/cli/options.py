"""Options that several commands share, and the types of their values."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from peagle_trt.cli.settings_file import load_settings
from peagle_trt.machine import probe_machine

MAX_THREADS_A_CORE = 4
"""Every thread has a stack and spins while it waits; far more of them than cores eat memory and gain nothing."""


class _FilePath(click.Path):
    """A path; `""` is refused, which `Path` would take for the working directory."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        if isinstance(value, str) and (not value or "\0" in value):
            self.fail("it is empty" if not value else "it holds a NUL character", param, ctx)
        return super().convert(value, param, ctx)


class NumberList(click.ParamType):  # type: ignore[type-arg]  # Generic from click 8.4 on only.
    """Whole numbers, separated by commas.

    Args:
        min: Smallest number allowed.
        max: Largest; None for no limit.
        words: Words that may be written, and the number each stands for.
    """

    name = "number list"

    def __init__(self, *, min: int, max: int | None = None, words: Mapping[str, int] | None = None) -> None:
        self._each = click.IntRange(min, max)
        self._words = dict(words or {})

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """What help shows for a value."""
        return "N,..."

    def convert(
        self, value: str | int | Sequence[int], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """From text, or from the numbers of a settings file."""
        parts: Sequence[Any] = value if isinstance(value, list | tuple) else str(value).split(",")
        if not parts:
            self.fail("the list is empty", param, ctx)
        return tuple(self._number(part, param, ctx) for part in parts)

    def _number(self, part: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        word = self._words.get(part.strip()) if isinstance(part, str) else None
        return int(self._each.convert(self._whole(part, param, ctx), param, ctx)) if word is None else word

    def _whole(self, part: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return part if isinstance(part, int) else int(str(part))
        except ValueError:
            self.fail(f"{str(part)!r} is no whole number", param, ctx)


FOLDER = _FilePath(path_type=Path)
FILE = _FilePath(path_type=Path, dir_okay=False)

config_option = click.option(
    "--config",
    type=FILE,
    callback=load_settings,
    is_eager=True,
    expose_value=False,
    help="TOML file with this command's long options as keys; what is typed wins over it.",
)
"""Adds `--config FILE` to a command."""


def _check_threads(context: click.Context, parameter: click.Parameter, value: int | None) -> int | None:
    if value is None:
        return None
    num_cores = probe_machine().num_usable_cores
    limit = MAX_THREADS_A_CORE * num_cores
    if value > limit:
        message = f"{value} is more than {limit}, {MAX_THREADS_A_CORE} for each of the {num_cores} usable cores"
        raise click.BadParameter(message, context, parameter)
    return value


threads_option = click.option(
    "--threads",
    "num_threads",
    type=click.IntRange(min=1),
    callback=_check_threads,
    help=f"Threads of the CPU backends, up to {MAX_THREADS_A_CORE} a core; every core by default.",
)
