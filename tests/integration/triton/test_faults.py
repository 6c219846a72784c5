"""Processes that die and steps that fail: every request ends in time, nothing hangs, and the next one is answered."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from peagle_trt.decode.session import LoadedBuild
from peagle_trt.deploy.client import HttpClient, read_metrics
from peagle_trt.deploy.ports import choose_ports
from peagle_trt.deploy.server import TritonServer
from peagle_trt.errors import PeagleError, RequestError
from tests.support.servers import Serving, children, wait_until

from .conftest import LASTING, Served

PROMPT = "Question: Tom has 3 apples and buys 4 more. How many apples does he have?\nAnswer:"
ASK = {"text_input": PROMPT, "max_tokens": 16}
LONG = {"text_input": PROMPT, "max_tokens": 900, "end_id": -1, "draft_tokens": 0}
DEADLINE_SECONDS = 30.0
"""No request of these tests may take longer, whatever happens to it; a whole answer takes four on a busy machine."""

FAULTY_MODEL = """

_sound = TritonPythonModel.initialize


def _initialize(self, args):
    import pathlib

    _sound(self, args)
    engine = self.host._driver._loop._engine
    run, fault = engine.run_target, pathlib.Path(__file__).parent / "fault"

    def run_or_fail(rows):
        if fault.exists():
            raise RuntimeError("the device is gone")
        return run(rows)

    engine.run_target = run_or_fail


TritonPythonModel.initialize = _initialize
"""


class Clients:
    """Several clients at once, each with one request."""

    def __init__(self, port: int, models: list[str], path: str) -> None:
        self.outcomes: list[str] = []
        self.has_first_piece = threading.Event()
        self._port = port
        self._path = path
        self._threads = [threading.Thread(target=self._ask, args=(model,), daemon=True) for model in models]
        for thread in self._threads:
            thread.start()

    def ended(self, seconds: float = DEADLINE_SECONDS) -> Counter[str]:
        """How the requests ended; `hung` for those that have not."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return Counter([*self.outcomes, *("hung" for thread in self._threads if thread.is_alive())])

    def _ask(self, model: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=2 * DEADLINE_SECONDS)
        outcome = "error"
        try:
            body = json.dumps({**LONG, "stream": self._path == "generate_stream"})
            connection.request("POST", f"/v2/models/{model}/{self._path}", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            last = b""
            for line in response:
                self.has_first_piece.set()
                last = line if line.strip() else last
            # A server that loses its model ends a stream as if it were whole; only the last piece says that it is.
            outcome = "answer" if b'"finish_reason"' in last and response.status == 200 else "error"
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        self.outcomes.append(outcome)


@pytest.fixture
def serving(tiny_build: Path, tmp_path: Path) -> Iterator[Serving]:
    serving = Serving(tiny_build, tmp_path)
    yield serving
    if serving.process.poll() is None:
        serving.process.terminate()
    serving.process.wait(30)


def engine_process(server_pid: int) -> int:
    """The model process that holds the engine: the largest."""
    return max(children(server_pid), key=lambda pid: int(Path(f"/proc/{pid}/statm").read_text().split()[1]))


@pytest.mark.slow
@pytest.mark.parametrize("path", ["generate", "generate_stream"])
def test_every_request_ends_when_the_model_process_is_killed_and_a_restart_recovers(
    serving: Serving, tiny_build: Path, tmp_path: Path, path: str
) -> None:
    server_pid = serving.wait_ready()
    clients = Clients(serving.ports.http, ["peagle"] * 4, path)
    assert wait_until(lambda: read_metrics(serving.ports.metrics).get("peagle_running_requests") == 4)
    os.kill(engine_process(server_pid), signal.SIGKILL)
    assert clients.ended() == {"error": 4}
    assert serving.process.wait(DEADLINE_SECONDS) == 1
    assert "a model process of the server died" in serving.log
    (tmp_path / "again").mkdir()
    again = Serving(tiny_build, tmp_path / "again", ports=serving.ports)
    try:
        again.wait_ready()
        assert HttpClient(again.ports.http).generate(ASK)["num_output_tokens"] > 0
    finally:
        again.process.terminate()
        assert again.process.wait(DEADLINE_SECONDS) == 0


@pytest.mark.slow
def test_the_door_says_that_it_is_not_ready_when_the_model_process_is_dead(tiny_build: Path, tmp_path: Path) -> None:
    port = choose_ports().http
    serving = Serving(tiny_build, tmp_path, "--openai", "--openai-port", str(port))
    server_pid = serving.wait_ready()
    address = f"http://127.0.0.1:{port}"
    assert wait_until(lambda: httpx.get(f"{address}/health").status_code == 200)
    os.kill(engine_process(server_pid), signal.SIGKILL)
    seen: list[int] = []
    while serving.process.poll() is None and len(seen) < 500:
        try:
            seen.append(httpx.get(f"{address}/health", timeout=DEADLINE_SECONDS).status_code)
        except httpx.HTTPError:
            break
    assert set(seen[1:]) <= {503}
    assert serving.process.wait(DEADLINE_SECONDS) == 1


def test_a_client_that_is_killed_frees_its_slot(served: Served, loaded: LoadedBuild) -> None:
    before = served.settled_metrics()["peagle_cancelled_requests_total"]
    address = f"http://127.0.0.1:{served.server.ports.http}/v2/models/peagle/generate_stream"
    program = (
        "import sys, httpx\nwith httpx.stream('POST', sys.argv[1], json=eval(sys.argv[2])) as answer:\n"
        "  list(answer.iter_raw())"
    )
    client = subprocess.Popen([sys.executable, "-c", program, address, repr({**LASTING, "stream": True})])
    assert wait_until(lambda: served.metrics()["peagle_running_requests"] == loaded.manifest.shapes.max_batch_size)
    client.kill()
    client.wait()
    assert wait_until(
        lambda: served.metrics()["peagle_cancelled_requests_total"] == before + LASTING["num_return_sequences"]
    )
    assert served.settled_metrics()["peagle_running_requests"] == 0


@pytest.mark.slow
def test_a_step_that_fails_answers_everyone_with_the_reason_and_the_next_request_is_served(
    repository: Path, tmp_path: Path
) -> None:
    shutil.copytree(repository, tmp_path / "faulty")
    model = tmp_path / "faulty/peagle/1/model.py"
    model.write_text(model.read_text() + FAULTY_MODEL)
    with TritonServer(tmp_path / "faulty", choose_ports(), log_path=tmp_path / "log") as server:
        client = HttpClient(server.ports.http)
        whole = client.generate(ASK)["text_output"]
        for path in ("generate", "generate_stream"):
            models = ["peagle", "peagle", "tensorrt_llm_bls", "ensemble"]
            clients = Clients(server.ports.http, models, path)
            assert wait_until(lambda: read_metrics(server.ports.metrics)["peagle_running_requests"] == 4)
            (model.parent / "fault").touch()
            assert clients.ended() == {"error": 4}
            for name in ("peagle", "tensorrt_llm_bls", "ensemble"):
                with pytest.raises((RequestError, PeagleError), match="the device is gone"):
                    client.generate(ASK, model=name)
            (model.parent / "fault").unlink()
            assert client.generate(ASK)["text_output"] == whole
        assert wait_until(lambda: read_metrics(server.ports.metrics)["peagle_cache_used_tokens"] == 0)
        server.require_alive()
    log = (tmp_path / "log").read_text()
    assert "a decode step failed, and with it `r" in log


@pytest.mark.slow
def test_a_stop_under_load_ends_every_request(serving: Serving) -> None:
    serving.wait_ready()
    models = ["peagle"] * 8 + ["tensorrt_llm_bls"] * 2 + ["ensemble"] * 2
    clients = Clients(serving.ports.http, models, "generate_stream")
    assert clients.has_first_piece.wait(DEADLINE_SECONDS)
    serving.process.send_signal(signal.SIGTERM)
    outcomes = clients.ended()
    assert outcomes["hung"] == 0
    assert outcomes.total() == 12
    assert serving.process.wait(DEADLINE_SECONDS) == 0, serving.log
