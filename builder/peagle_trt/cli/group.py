"""The `peagle-trt` command: commands are imported when they are run."""

from __future__ import annotations

import difflib
import importlib
import logging
import os
import sys

import click

from peagle_trt import __version__
from peagle_trt.cli.output import Output
from peagle_trt.cli.registry import COMMANDS

LOG_LEVEL_VARIABLE = "PEAGLE_TRT_LOG_LEVEL"
_LOG_LEVELS = ("debug", "info", "warning", "error")


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports only the one that runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, in the order of a user's work."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name].module).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or suggest one."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], COMMANDS, n=1)
            suggestion = f"did you mean `{close[0]}`?" if close else f"commands: {', '.join(COMMANDS)}"
            ctx.fail(f"no such command `{args[0]}`; {suggestion}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="peagle-trt")
@click.option("--json", "is_json", is_flag=True, help="One JSON document on stdout, also on failure.")
@click.option("-v", "--verbose", count=True, help="More on stderr; twice for everything.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@click.pass_context
def group(context: click.Context, is_json: bool, verbose: int, quiet: bool) -> None:
    """Compile P-EAGLE speculative decoding into engines, serve it, measure it."""
    _start_logging(verbose)
    output: Output = context.ensure_object(Output)
    output.is_json, output.is_quiet = is_json, quiet


def _start_logging(verbose: int) -> None:
    name = os.environ.get(LOG_LEVEL_VARIABLE, "warning").lower()
    if name not in _LOG_LEVELS:
        raise click.UsageError(f"{LOG_LEVEL_VARIABLE} is `{name}`; expected one of {', '.join(_LOG_LEVELS)}")
    level = {0: logging.getLevelName(name.upper()), 1: logging.INFO}.get(verbose, logging.DEBUG)
    logging.basicConfig(stream=sys.stderr, level=level, format="%(levelname)s %(name)s: %(message)s")
