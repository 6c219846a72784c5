"""How a server starts, fails, stops and dies, and what it leaves behind: nothing."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from peagle_trt.deploy import shared_memory
from peagle_trt.deploy.client import HttpClient
from peagle_trt.deploy.ports import choose_ports
from peagle_trt.deploy.server import TritonServer
from peagle_trt.errors import PeagleError
from tests.support.servers import COMMAND, Serving, children, is_running, our_regions, wait_until


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
    assert [pid for pid in processes if is_running(pid)] == []


TIME_IS_UP = "Exit timeout expired"


def test_a_server_that_has_answered_everybody_unloads_its_models_in_order(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Three seconds on a machine with nothing else to do, and nobody knows how many on others.
    monkeypatch.setattr("peagle_trt.deploy.server.EXIT_TIMEOUT_SECONDS", 60)
    monkeypatch.setattr("peagle_trt.deploy.server.STOP_TIMEOUT_SECONDS", 70.0)
    with TritonServer(repository, choose_ports(), log_path=tmp_path / "log") as server:
        client = HttpClient(server.ports.http)
        with ThreadPoolExecutor(8) as pool:
            asked = [{"text_input": f"{number} + 1", "max_tokens": 8} for number in range(16)]
            assert len(list(pool.map(client.generate, asked))) == 16
    log = (tmp_path / "log").read_text()
    assert TIME_IS_UP not in log
    assert "successfully unloaded 'peagle' version 1" in log


def test_a_server_that_is_stopped_beside_an_open_connection_leaves_nothing(repository: Path, tmp_path: Path) -> None:
    # Triton has one time limit for both, and waits for connections first: those that still answer, and idle ones.
    # What it leaves behind when the models have no time left is removed from outside.
    with TritonServer(repository, choose_ports(), log_path=tmp_path / "log") as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.ports.http)
        connection.request("GET", "/v2/health/ready")
        assert connection.getresponse().read() == b""
        processes = [server.pid, *children(server.pid)]
    connection.close()
    assert wait_until(lambda: shared_memory.regions(server.shared_memory_prefix) == [])
    # Killed processes go when the system comes round to it.
    assert wait_until(lambda: not any(is_running(pid) for pid in processes))


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
    assert not is_running(server_pid)
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
    assert wait_until(lambda: not is_running(server_pid))
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
