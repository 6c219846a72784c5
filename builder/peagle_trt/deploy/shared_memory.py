"""The server's shared memory: named after the process that started it, so that nothing of it can be left for good."""

from __future__ import annotations

import contextlib
import re
import uuid
from pathlib import Path

from peagle_trt.deploy.leftovers import is_process_alive, owner_prefix

SHARED_MEMORY_PATH = Path("/dev/shm")
_PREFIX = re.compile(r"peagle-(?P<pid>[0-9]+)-[0-9a-f]{8}_")


def new_prefix() -> str:
    """A prefix for the regions of one server, owned by this process."""
    return f"{owner_prefix()}{uuid.uuid4().hex[:8]}_"


def regions(prefix: str) -> list[Path]:
    """Regions of one server."""
    return sorted(SHARED_MEMORY_PATH.glob(f"{prefix}*")) if SHARED_MEMORY_PATH.is_dir() else []


def remove_regions(prefix: str) -> None:
    """Unlinks the regions of a server that has ended; a killed one leaves 1 MiB or more for each model process."""
    for region in regions(prefix):
        with contextlib.suppress(OSError):
            region.unlink()


def sweep_stale_regions() -> int:
    """Unlinks regions whose starter is gone, as after `kill -9`.

    Returns:
        How many there were.
    """
    stale = [region for region in regions("peagle-") if _is_stale(region.name)]
    for region in stale:
        with contextlib.suppress(OSError):
            region.unlink()
    return len(stale)


def _is_stale(name: str) -> bool:
    match = _PREFIX.match(name)
    return match is not None and not is_process_alive(int(match["pid"]))
