"""How the programs in `scripts/` read numbers, and end: as `peagle-trt` does, with a clear line and an exit code."""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Callable

from peagle_trt.cli.boundary import guard
from peagle_trt.cli.signals import SignalWatch
from peagle_trt.errors import PeagleError


def run_script(main: Callable[[], int | None]) -> int:
    """Run a program and report how it ended.

    Args:
        main: The program; returns its exit code, or None for 0.

    Returns:
        The exit code.
    """
    return guard(lambda _: _run(main), SignalWatch())


def positive(text: str) -> int:
    """A whole number above 0; a type for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"`{text}` is no number above 0")
    return int(text)


def positives(text: str) -> tuple[int, ...]:
    """Whole numbers above 0, separated by commas, each once; a type for argparse."""
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"`{text}` is no list of numbers above 0, such as 1,2,4")
    return tuple(dict.fromkeys(map(int, parts)))


def _run(main: Callable[[], int | None]) -> int:
    try:
        return main() or 0
    except subprocess.CalledProcessError as error:
        command = error.cmd if isinstance(error.cmd, str) else " ".join(map(str, error.cmd))
        raise PeagleError(
            f"a program ended with {error.returncode}: `{command}`", hint="what it said is above"
        ) from error
