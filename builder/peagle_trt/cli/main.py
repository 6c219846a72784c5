"""The process boundary: arguments in, exit code out; the one place that catches everything."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import click

from peagle_trt.cli.group import group
from peagle_trt.cli.output import Output, ReaderGoneError
from peagle_trt.errors import MachineError, PeagleError
from peagle_trt.files import naming_os_errors

BUG_EXIT_CODE = 70
USAGE_EXIT_CODE = 2
_SIGNAL_BASE = 128
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class EndedBySignal(BaseException):
    """A signal asked the process to end; unwinds like Ctrl-C, so staging folders are left in order."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def main() -> None:
    """Entry point of `peagle-trt`."""
    for number in _ENDING_SIGNALS:
        signal.signal(number, _end)
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line.

    Args:
        arguments: Words after the program's name.

    Returns:
        The exit code.
    """
    output = Output(is_json=_asks_for_json(arguments))
    try:
        with naming_os_errors(Path.cwd()):
            code = group.main(list(arguments), prog_name="peagle-trt", standalone_mode=False, obj=output)
        if isinstance(code, int) and code != 0:
            return code
        # `--help` and `--version` have spoken for themselves.
        if not {"-h", "--help", "--version"} & set(arguments):
            output.finish()
        return 0
    except (KeyboardInterrupt, click.Abort):
        return _stopped(output, signal.SIGINT)
    except EndedBySignal as ending:
        return _stopped(output, ending.number)
    except ReaderGoneError:
        # The reader went away; nothing can be said to it, and Python must not try at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _SIGNAL_BASE + signal.SIGPIPE
    except PeagleError as error:
        return _failed(output, error)
    except MemoryError:
        return _failed(
            output, MachineError("this machine has too little memory", hint="take a smaller target or batch")
        )
    except click.ClickException as error:
        return _misused(output, error)
    except Exception as error:
        traceback.print_exc()
        hint = "this is a fault of peagle-trt; please report it with the lines above"
        output.failure(type(error).__name__, str(error) or type(error).__name__, hint=hint, exit_code=BUG_EXIT_CODE)
        return BUG_EXIT_CODE


def _asks_for_json(arguments: Sequence[str]) -> bool:
    """Whether failures are due as JSON, decided before the arguments are known to make sense."""
    for argument in arguments:
        if not argument.startswith("-"):
            return False
        if argument == "--json":
            return True
    return False


def _failed(output: Output, error: PeagleError) -> int:
    output.failure(type(error).__name__, error.message, hint=error.hint, exit_code=error.exit_code)
    return error.exit_code


def _misused(output: Output, error: click.ClickException) -> int:
    context = getattr(error, "ctx", None)
    hint = f"see `{context.command_path} --help`" if context is not None else "see `peagle-trt --help`"
    message = error.format_message().strip().rstrip(".")
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        output.progress(message)
        message = "no command given"
    output.failure("UsageError", message, hint=hint, exit_code=USAGE_EXIT_CODE)
    return USAGE_EXIT_CODE


def _stopped(output: Output, number: int) -> int:
    code = _SIGNAL_BASE + number
    output.failure("Interrupted", f"stopped by {signal.Signals(number).name}", hint="", exit_code=code)
    return code


def _end(number: int, frame: FrameType | None) -> None:
    raise EndedBySignal(number)
