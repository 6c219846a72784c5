"""What a server and the processes it started take: CPU time and memory, from /proc."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_KIB = 1024


def tree(pid: int) -> list[int]:
    """A process and everything below it."""
    found = [pid]
    for parent in found:
        for path in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += [int(child) for child in path.read_text().split()]
    return found


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and everything below it, user and system."""
    return sum(_cpu_seconds(each) for each in tree(pid))


def memory_bytes(pid: int) -> int:
    """Memory of a process and everything below it, shared pages counted once for each."""
    return sum(_resident_bytes(each) for each in tree(pid))


def _cpu_seconds(pid: int) -> float:
    try:
        # The fields follow the name, which stands in parentheses and may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _resident_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * _KIB for line in lines if line.startswith("VmRSS:"))
