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


def thread_seconds(pid: int) -> dict[str, float]:
    """CPU time, user and system, of every thread of a process and of those below it."""
    threads = [path for each in tree(pid) for path in Path(f"/proc/{each}/task").glob("*")]
    return {path.name: _cpu_seconds(path) for path in threads}


def memory_bytes(pid: int) -> int:
    """Memory of a process and everything below it, shared pages counted once for each."""
    return sum(_resident_bytes(each) for each in tree(pid))


def _cpu_seconds(thread: Path) -> float:
    try:
        # The fields follow the name, which stands in parentheses and may hold anything.
        fields = (thread / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _resident_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * _KIB for line in lines if line.startswith("VmRSS:"))
