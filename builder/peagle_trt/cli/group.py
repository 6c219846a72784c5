"""The `peagle-trt` command: commands are imported when they are run."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Sequence
from pathlib import Path

import click

from peagle_trt import __version__
from peagle_trt.cli.global_options import GLOBAL_OPTIONS, Command, GlobalOptions, options_in
from peagle_trt.cli.output import Output
from peagle_trt.cli.registry import COMMANDS
from peagle_trt.errors import MachineError


class LazyGroup(GlobalOptions, click.Group):
    """A group that knows its commands by name and imports only the one that runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, in the order of a user's work."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        return Command(importlib.import_module(COMMANDS[cmd_name].module).command)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the words in front of the command, after a look at all of them for how failures are to be reported."""
        output = ctx.ensure_object(Output)
        # A first guess, for whatever happens while the command is imported, whose options are not known before.
        output.is_json = "--json" in options_in(args, GLOBAL_OPTIONS)
        output.is_json = self._asks_for_json(ctx, args)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or suggest one."""
        pair = " ".join(args[:2])
        if pair in COMMANDS:
            return pair, self.get_command(ctx, pair), args[2:]
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], COMMANDS, n=1)
            suggestion = f"did you mean `{close[0]}`?" if close else f"commands: {', '.join(COMMANDS)}"
            ctx.fail(f"no such command `{args[0]}`; {suggestion}")
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List options and commands without importing the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])
        GlobalOptions.format_options(self, ctx, formatter)

    def _asks_for_json(self, ctx: click.Context, words: Sequence[str]) -> bool:
        names = [word for word in words if not word.startswith("-")]
        pair = " ".join(names[:2])
        command = self.get_command(ctx, pair if pair in COMMANDS else "".join(names[:1]))
        return "--json" in options_in(words, [*(command.params if command else ()), *GLOBAL_OPTIONS])


def _show_version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        context.ensure_object(Output).result({"version": __version__}, f"peagle-trt, version {__version__}")
        context.exit()


@click.group(cls=LazyGroup, invoke_without_command=True, add_help_option=False)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
@click.pass_context
def group(context: click.Context) -> None:
    """Compile P-EAGLE speculative decoding into engines, serve it, measure it.

    The global options are accepted before and after the command's name.
    """
    if context.invoked_subcommand is None:
        context.ensure_object(Output).progress(context.get_help())
        raise click.UsageError("no command given", context)
    _require_working_directory()


def _require_working_directory() -> None:
    # Relative paths, and several libraries, need one.
    try:
        Path.cwd()
    except OSError as error:
        raise MachineError(
            "the working directory no longer exists", hint="change to a folder that exists, and try again"
        ) from error
