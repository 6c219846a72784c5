"""The options that every command takes, before and after its name: `--json`, `--quiet`, `--verbose`, `--help`."""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Collection, Iterator, Sequence

import click

from peagle_trt.cli.output import Output

LOG_LEVEL_VARIABLE = "PEAGLE_TRT_LOG_LEVEL"
_LOG_LEVELS = ("debug", "info", "warning", "error")


class GlobalOptions(click.Command):
    """A command that takes the global options among its own, and shows them under a heading of their own."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Its own parameters, then the global ones."""
        return [*super().get_params(ctx), *GLOBAL_OPTIONS]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write two lists."""
        for heading, parameters in (("Options", self.params), ("Global options", GLOBAL_OPTIONS)):
            options = [parameter for parameter in parameters if isinstance(parameter, click.Option)]
            records = [record for option in options if (record := option.get_help_record(ctx))]
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


class Command(GlobalOptions):
    """A command as its module declares it, and the global options.

    Args:
        declared: The command of a module in the registry.
    """

    def __init__(self, declared: click.Command) -> None:
        super().__init__(
            declared.name, params=declared.params, help=declared.help, callback=declared.callback, add_help_option=False
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the words; text that is given and empty, or a number that is none, means nothing to any command."""
        rest = super().parse_args(ctx, args)
        for parameter in self.params:
            value = ctx.params.get(parameter.name or "")
            for part in value if isinstance(value, tuple) else (value,):
                if part == "":
                    raise click.BadParameter("it is empty", ctx, parameter)
                if isinstance(part, float) and not math.isfinite(part):
                    raise click.BadParameter(f"{part} is not a finite number", ctx, parameter)
        return rest


def options_in(arguments: Sequence[str], parameters: Sequence[click.Parameter]) -> Iterator[str]:
    """The words of a command line that are options, and neither values of options nor behind `--`.

    Works on lines that the parser refuses, too: a failure must be reported in the form that was asked for.

    Args:
        arguments: Words of the command line.
        parameters: What the command takes; an option that it does not know is taken for a flag.
    """
    with_value = {
        name
        for parameter in parameters
        if isinstance(parameter, click.Option) and not parameter.is_flag and not parameter.count
        for name in parameter.opts
    }
    words = iter(arguments)
    for word in words:
        if word == "--":
            return
        if word.startswith("--"):
            names, has_value = [word.partition("=")[0]], "=" in word
        else:
            names, has_value = _split_letters(word, with_value)
        yield from names
        if names and names[-1] in with_value and not has_value:
            next(words, None)


def _split_letters(word: str, with_value: Collection[str]) -> tuple[list[str], bool]:
    """The options of a word such as `-qk5`, and whether a value follows in the same word."""
    names: list[str] = []
    for index, letter in enumerate(word[1:] if word.startswith("-") else ""):
        names.append(f"-{letter}")
        if names[-1] in with_value:
            return names, index + 2 < len(word)
    return names, False


def _choose_json(context: click.Context, _: click.Parameter, value: bool) -> None:
    context.ensure_object(Output).is_json |= value


def _choose_quiet(context: click.Context, _: click.Parameter, value: bool) -> None:
    context.ensure_object(Output).is_quiet |= value


def _choose_verbosity(context: click.Context, _: click.Parameter, value: int) -> None:
    output = context.ensure_object(Output)
    output.verbosity += value
    name = os.environ.get(LOG_LEVEL_VARIABLE, "warning").lower()
    if name not in _LOG_LEVELS:
        raise click.UsageError(f"{LOG_LEVEL_VARIABLE} is `{name}`; expected one of {', '.join(_LOG_LEVELS)}")
    level = {0: logging.getLevelName(name.upper()), 1: logging.INFO}.get(output.verbosity, logging.DEBUG)
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger().setLevel(level)


def _show_help(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        text = context.get_help()
        context.ensure_object(Output).result({"help": text}, text)
        context.exit()


GLOBAL_OPTIONS = (
    click.Option(
        ["--json"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_choose_json,
        help="One JSON document on stdout, also on failure.",
    ),
    click.Option(
        ["-v", "--verbose"],
        count=True,
        is_eager=True,
        expose_value=False,
        callback=_choose_verbosity,
        help="More on stderr; twice for everything.",
    ),
    click.Option(
        ["-q", "--quiet"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_choose_quiet,
        help="No progress on stderr.",
    ),
    click.Option(
        ["-h", "--help"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_show_help,
        help="Show this message and exit.",
    ),
)
"""Accepted before and after a command's name."""
