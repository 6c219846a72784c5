"""A `peagle-trt serve` in a process of its own, and what can be seen of its processes from outside."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from peagle_trt.deploy import shared_memory
from peagle_trt.deploy.ports import ServerPorts, choose_ports

COMMAND = [sys.executable, "-c", "from peagle_trt.cli.main import main; main()"]


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def our_regions(pid: int) -> list[str]:
    return [region.name for region in shared_memory.regions(f"peagle-{pid}-")]


def children(pid: int) -> list[int]:
    try:
        texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    return [int(child) for text in texts for child in text.split()]


class Serving:
    """A `peagle-trt serve` in a process of its own."""

    def __init__(self, build: Path, folder: Path, *more: str, ports: ServerPorts | None = None) -> None:
        self.ports: ServerPorts = ports or choose_ports()
        self.log_path = folder / "serve.log"
        arguments = ["serve", str(build), "--log-dir", str(folder), *more]
        for door in ("http", "grpc", "metrics"):
            arguments += [f"--{door}-port", str(getattr(self.ports, door))]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen([*COMMAND, *arguments], stdout=log, stderr=log)

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def wait_ready(self) -> int:
        """The server's process number, once it is ready."""
        assert wait_until(lambda: "ready " in self.log or self.process.poll() is not None, 120), self.log
        assert self.process.poll() is None, self.log
        return children(self.process.pid)[0]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
