"""How a server starts, fails, stops and dies, and what it leaves behind: nothing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from peagle_trt.deploy import shared_memory
from peagle_trt.deploy.client import HttpClient
from peagle_trt.deploy.ports import ServerPorts, choose_ports
from peagle_trt.deploy.server import TritonServer
from peagle_trt.errors import PeagleError

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

    def __init__(self, build: Path, folder: Path) -> None:
        self.ports: ServerPorts = choose_ports()
        self.log_path = folder / "serve.log"
        arguments = ["serve", str(build), "--log-dir", str(folder)]
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


@pytest.fixture
def serving(tiny_build: Path, tmp_path: Path) -> Iterator[Serving]:
    serving = Serving(tiny_build, tmp_path)
    yield serving
    if serving.process.poll() is None:
        serving.process.terminate()
    serving.process.wait(30)


def test_a_stopped_server_leaves_no_process_and_no_shared_memory(repository: Path, tmp_path: Path) -> None:
    with TritonServer(repository, choose_ports(), log_path=tmp_path / "log") as server:
        processes = [server.pid, *children(server.pid)]
        assert shared_memory.regions(server.shared_memory_prefix)
    assert shared_memory.regions(server.shared_memory_prefix) == []
    assert [pid for pid in processes if _is_running(pid)] == []


def test_a_repository_that_would_hang_the_server_fails_with_the_reason(repository: Path, tmp_path: Path) -> None:
    shutil.copytree(repository, tmp_path / "broken")
    (tmp_path / "broken/peagle/1/model.py").unlink()
    server = TritonServer(tmp_path / "broken", choose_ports(), log_path=tmp_path / "log")
    with pytest.raises(PeagleError, match=r"wait for ever.*model\.py"):
        server.start()


def test_a_model_that_cannot_load_fails_with_the_reason(repository: Path, tmp_path: Path) -> None:
    shutil.copytree(repository, tmp_path / "broken")
    (tmp_path / "broken/peagle/1/build/manifest.json").write_text("{}")
    server = TritonServer(tmp_path / "broken", choose_ports(), log_path=tmp_path / "log")
    with pytest.raises(PeagleError, match=r"did not start.*manifest\.json"):
        server.start()


def test_a_dead_model_process_is_noticed(repository: Path, tmp_path: Path) -> None:
    with TritonServer(repository, choose_ports(), log_path=tmp_path / "log") as server:
        os.kill(children(server.pid)[0], signal.SIGKILL)
        with pytest.raises(PeagleError, match="a model process"):
            wait_until(lambda: server.require_alive() is not None, 5)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_answers_until_it_is_stopped(serving: Serving, tiny_build: Path, number: signal.Signals) -> None:
    server_pid = serving.wait_ready()
    assert HttpClient(serving.ports.http).generate({"text_input": "1 + 1", "max_tokens": 2})["num_output_tokens"] == 2
    serving.process.send_signal(number)
    assert serving.process.wait(30) == 0, serving.log
    assert not _is_running(server_pid)
    assert our_regions(serving.process.pid) == []
    assert [entry.name for entry in tiny_build.parent.iterdir()] == [tiny_build.name]


def test_serve_notices_that_its_server_was_killed(serving: Serving) -> None:
    os.kill(serving.wait_ready(), signal.SIGKILL)
    assert serving.process.wait(30) == 1
    assert "the server ended by itself: signal 9" in serving.log
    assert our_regions(serving.process.pid) == []


def test_a_server_ends_with_the_command_that_was_killed_and_the_next_start_sweeps(
    serving: Serving, repository: Path, tmp_path: Path
) -> None:
    server_pid = serving.wait_ready()
    serving.process.kill()
    serving.process.wait(30)
    assert wait_until(lambda: not _is_running(server_pid))
    (shared_memory.SHARED_MEMORY_PATH / f"peagle-{serving.process.pid}-0123abcd_region").touch()
    with TritonServer(repository, choose_ports(), log_path=tmp_path / "log"):
        assert our_regions(serving.process.pid) == []


def test_a_taken_port_is_refused_before_anything_starts(tiny_build: Path, served: object) -> None:
    port = served.server.ports.http  # type: ignore[attr-defined]
    finished = subprocess.run(
        [*COMMAND, "serve", str(tiny_build), "--http-port", str(port)], capture_output=True, text=True, timeout=60
    )
    assert finished.returncode == 3
    assert f"the http port `{port}` cannot be used" in finished.stderr


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
