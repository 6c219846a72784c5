"""The process boundary: arguments in, exit code out; the one place that catches everything."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from peagle_trt.cli.group import group
from peagle_trt.cli.output import Output, ReaderGoneError
from peagle_trt.cli.signals import SIGNAL_BASE, EndedBySignal, SignalWatch
from peagle_trt.cli.streams import discard
from peagle_trt.errors import MachineError, PeagleError, UsageError
from peagle_trt.files import naming_os_errors

BUG_EXIT_CODE = 70
_UNNAMED = Path("a file without a name")


def run_guarded(arguments: Sequence[str], watch: SignalWatch) -> int:
    """Run one command line and report how it ended.

    Args:
        arguments: Words after the program's name.
        watch: Tells whether a signal has come.

    Returns:
        The exit code.
    """
    return guard(lambda output: _run(arguments, output), watch)


def guard(work: Callable[[Output], int], watch: SignalWatch) -> int:
    """Do work and report how it ended.

    Args:
        work: Prints to what it is given, and returns the exit code.
        watch: Tells whether a signal has come.

    Returns:
        The exit code.
    """
    output = Output()
    try:
        try:
            with naming_os_errors(_UNNAMED):
                return work(output)
        except ReaderGoneError:
            raise
        except (Exception, KeyboardInterrupt, EndedBySignal) as error:
            return _report(output, error, watch)
    except ReaderGoneError:
        # Nothing can be said to a reader that went away.
        discard(sys.stdout)
        return SIGNAL_BASE + signal.SIGPIPE


def _run(arguments: Sequence[str], output: Output) -> int:
    try:
        with group.make_context("peagle-trt", list(arguments), obj=output) as context:
            group.invoke(context)
    except click.exceptions.Exit as ending:
        return ending.exit_code
    output.finish()
    return 0


def _report(output: Output, error: BaseException, watch: SignalWatch) -> int:
    watch.stop()
    if isinstance(error, EndedBySignal):
        return _stopped(output, error.number)
    if watch.received or isinstance(error, KeyboardInterrupt | click.Abort):
        return _stopped(output, watch.received or signal.SIGINT)
    if isinstance(error, PeagleError):
        return _failed(output, error)
    if isinstance(error, click.ClickException):
        return _failed(output, _misuse(error))
    if isinstance(error, MemoryError):
        hint = "take a smaller target or batch"
        return _failed(output, MachineError("this machine has too little memory", hint=hint))
    traceback.print_exception(error)
    hint = "this is a fault of peagle-trt; please report it with the lines above"
    output.failure(type(error).__name__, str(error) or type(error).__name__, hint=hint, exit_code=BUG_EXIT_CODE)
    return BUG_EXIT_CODE


def _failed(output: Output, error: PeagleError) -> int:
    output.failure(type(error).__name__, error.message, hint=error.hint, exit_code=error.exit_code)
    return error.exit_code


def _misuse(error: click.ClickException) -> UsageError:
    context = getattr(error, "ctx", None)
    hint = f"see `{context.command_path} --help`" if context is not None else "see `peagle-trt --help`"
    return UsageError(error.format_message().strip().rstrip("."), hint=hint)


def _stopped(output: Output, number: int) -> int:
    code = SIGNAL_BASE + number
    output.failure("Interrupted", f"stopped by {signal.Signals(number).name}", hint="", exit_code=code)
    return code
