"""The standard streams as a shell may leave them: closed, full, or in another encoding."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO

# A closed stdout must go on refusing what is written to it, as it does for other programs; a closed stderr says that
# nobody wants to read about the work.
_MODES = (os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)


def prepare_streams() -> None:
    """Give every standard stream something to refer to, and make stdout UTF-8, as JSON must be.

    Without it the next file that is opened takes the number of a closed stream, and what a library prints lands in it.
    """
    for number, mode in enumerate(_MODES):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A file name that is not UTF-8 becomes an escape, which is an escape in JSON too.
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")


def discard(stream: TextIO) -> None:
    """Let a stream that can take no more swallow the rest, or Python would try once more at exit, and fail."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)
