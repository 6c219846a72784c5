"""Options that several commands share."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path

import click

from peagle_trt.errors import UsageError

FOLDER = click.Path(path_type=Path)


def _load_settings(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """Make a TOML file's keys the defaults of the other options; click then puts flags and environment above them."""
    if path is None:
        return None
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read `{path}`: {error}") from error
    known = {p.name for p in context.command.params if p.name is not None and p is not parameter}
    defaults = {key.replace("-", "_"): value for key, value in settings.items()}
    for key in defaults:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean `{close[0]}`?" if close else f"known: {', '.join(sorted(known))}"
            raise UsageError(f"`{path}` has the unknown key `{key}`", hint=hint)
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


config_option = click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_load_settings,
    is_eager=True,
    expose_value=False,
    help="TOML file with this command's options; flags and environment win over it.",
)
"""Adds `--config FILE` to a command. Keys are the long options' names, with `-` or `_`."""

threads_option = click.option(
    "--threads",
    "num_threads",
    type=click.IntRange(min=1),
    help="Threads of the CPU backends; every core by default.",
)
