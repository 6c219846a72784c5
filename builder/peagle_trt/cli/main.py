"""The entry point; light, so that an early signal or a closed stream finds things in order."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from peagle_trt.cli.signals import SIGNAL_BASE, SignalWatch
from peagle_trt.cli.streams import prepare_streams


def main() -> None:
    """Entry point of `peagle-trt`."""
    watch = SignalWatch()
    watch.start()
    prepare_streams()
    try:
        code = run(sys.argv[1:], watch)
        watch.stop()
    except BaseException:
        # Too early to say more than the code does, or a second signal while the first is reported.
        if watch.received is None:
            raise
        code = SIGNAL_BASE + watch.received
    sys.exit(code)


def run(arguments: Sequence[str], watch: SignalWatch | None = None) -> int:
    """Run one command line.

    Args:
        arguments: Words after the program's name.
        watch: Who remembers signals; None where another part of the process handles them.

    Returns:
        The exit code.
    """
    from peagle_trt.cli.boundary import run_guarded

    return run_guarded(arguments, watch or SignalWatch())
