"""A running peer: its worker's process, which is asked line by line and never waited for without a limit."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

END_SECONDS = 30


class PeerError(Exception):
    """A peer ended, was silent for too long, or answered what is no answer."""


@dataclass(slots=True, kw_only=True)
class Engine:
    """One peer with one way to decode.

    Attributes:
        name: Of the peer.
        method: How it decodes.
        process: Its worker.
        log_path: Where what it prints goes.
        timeout_seconds: Longest silence after a question.
        version: What the worker said.
        rounds: What it answered so far, by set of prompts and number of prompts in flight.
    """

    name: str
    method: str
    process: subprocess.Popen[str]
    log_path: Path
    timeout_seconds: float
    version: str = ""
    rounds: dict[tuple[str, int], list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        """What tells engines apart."""
        return self.name, self.method

    def ask(self, document: object) -> dict[str, Any]:
        """Send a document and wait for its answer.

        Raises:
            PeerError: None came.
        """
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None and stdout is not None
        # A worker that has ended breaks the pipe; what it said last tells more than that.
        with contextlib.suppress(BrokenPipeError):
            stdin.write(json.dumps(document) + "\n")
            stdin.flush()
        if not select.select([stdout], [], [], self.timeout_seconds)[0]:
            self.process.kill()
            raise PeerError(f"no answer in {self.timeout_seconds:.0f} s")
        line = stdout.readline()
        if not line.endswith("\n"):
            raise PeerError(f"ended with {self.process.wait()}: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the worker."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def _last_words(self) -> str:
        lines = [line.strip() for line in self.log_path.read_text(errors="replace").splitlines()]
        return next((line for line in reversed(lines) if line), "it said nothing")


def start_engine(
    name: str, method: str, command: list[str], *, root: Path, log_path: Path, threads: int, timeout_seconds: float
) -> Engine:
    """Start a worker.

    Args:
        name: Of the peer.
        method: How it decodes.
        command: What to run.
        root: Folder to run in.
        log_path: Where what it prints goes.
        threads: Threads that its libraries may use.
        timeout_seconds: Longest silence after a question.

    Raises:
        OSError: It cannot be started.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("w") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment, cwd=root
        )
    return Engine(name=name, method=method, process=process, log_path=log_path, timeout_seconds=timeout_seconds)
