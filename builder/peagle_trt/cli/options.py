"""Options that several commands share, and the types of their values."""

from __future__ import annotations

import os
from collections.abc import Sequence
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


class NumberOrWord(click.ParamType):  # type: ignore[type-arg]  # Generic from click 8.4 on only.
    """A whole number, or a word in its place.

    Args:
        min: Smallest number allowed.
        max: Largest; None for no limit.
        words: Words that may be written instead; every error names them.
    """

    name = "number or word"

    def __init__(self, *, min: int | None = None, max: int | None = None, words: Sequence[str] = ()) -> None:
        self._range = click.IntRange(min, max)
        self._words = tuple(words)

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """What help shows for a value."""
        return "|".join(("N", *self._words))

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """From text, or from a number of a settings file."""
        if isinstance(value, str) and value.strip() in self._words:
            return value.strip()
        try:
            return int(self._range.convert(value if isinstance(value, int) else self._whole(value), param, ctx))
        except click.BadParameter as error:
            others = "".join(f", nor `{word}`" for word in self._words)
            self.fail(error.message.rstrip(".") + others, param, ctx)

    @staticmethod
    def _whole(text: str) -> int:
        try:
            return int(str(text))
        except ValueError as error:
            raise click.BadParameter(f"{str(text)!r} is no whole number") from error


class NumberList(click.ParamType):  # type: ignore[type-arg]  # Generic from click 8.4 on only.
    """Whole numbers, separated by commas.

    Args:
        min: Smallest number allowed.
        max: Largest; None for no limit.
        words: Words that may be written in a number's place.
    """

    name = "number list"

    def __init__(self, *, min: int, max: int | None = None, words: Sequence[str] = ()) -> None:
        self._each = NumberOrWord(min=min, max=max, words=words)

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """What help shows for a value."""
        return f"{self._each.get_metavar(param, ctx)},..."

    def convert(
        self, value: str | int | Sequence[int | str], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int | str, ...]:
        """From text, or from the numbers and words of a settings file."""
        parts: Sequence[Any] = value if isinstance(value, list | tuple) else str(value).split(",")
        if not parts:
            self.fail("the list is empty", param, ctx)
        return tuple(self._each.convert(part, param, ctx) for part in parts)


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


prompt_lookup_option = click.option(
    "--prompt-lookup",
    is_flag=True,
    help="Verify copies from the text in place of drafts where they have been right more often.",
)
served_prompt_lookup_option = click.option(
    "--prompt-lookup",
    is_flag=True,
    help="Let copies from the text take the place of drafts for requests that do not say.",
)
threads_option = click.option(
    "--threads",
    "num_threads",
    type=click.IntRange(min=1),
    callback=_check_threads,
    help=f"Threads of the CPU backends, up to {MAX_THREADS_A_CORE} a core; every core by default.",
)
