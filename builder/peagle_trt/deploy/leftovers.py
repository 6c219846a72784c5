"""Everything temporary carries its owner's process number, so that what a killed owner left can be told and removed."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

_OWNED_FOLDER = re.compile(r"\.?peagle-(?P<pid>[0-9]+)-")


def owner_prefix() -> str:
    """What the names of everything temporary that this process owns start with."""
    return f"peagle-{os.getpid()}-"


def sweep_stale_folders(parent: Path) -> int:
    """Remove folders whose owner is gone, as after `kill -9`.

    Args:
        parent: Where to look.

    Returns:
        How many there were.
    """
    found = [folder for pattern in ("peagle-*", ".peagle-*") for folder in parent.glob(pattern)]
    stale = [folder for folder in found if folder.is_dir() and _is_stale(folder.name)]
    for folder in stale:
        shutil.rmtree(folder, ignore_errors=True)
    return len(stale)


def is_process_alive(pid: int) -> bool:
    """Whether there is a process of that number, ours or not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _is_stale(name: str) -> bool:
    match = _OWNED_FOLDER.match(name)
    return match is not None and not is_process_alive(int(match["pid"]))
