"""A new engine version is rolled out and back under load, as docs/deploy.md says, and the probes of the manifests."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from peagle_trt.deploy.client import HttpClient
from peagle_trt.deploy.ports import choose_ports
from peagle_trt.deploy.server import TritonServer
from tests.support.servers import children, wait_until

MANIFEST = Path(__file__).parents[3] / "deploy/kubernetes/base/deployment.yaml"
ASK = {"text_input": "Question: What is 2 + 3?\nAnswer:", "max_tokens": 12}
LONG = {**ASK, "max_tokens": 400, "end_id": -1, "draft_tokens": 0}

pytestmark = pytest.mark.slow


class ExplicitServer(TritonServer):
    """A server that loads a version when it is told to, as the manifests start it."""

    def _arguments(self) -> list[str]:
        return [*super()._arguments(), "--model-control-mode=explicit", "--load-model=*"]


class Load:
    """Requests one after the other until it is closed; what went wrong with them."""

    def __init__(self, port: int) -> None:
        self.faults: list[str] = []
        self.num_answers = 0
        self._client = HttpClient(port)
        self._is_closing = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(model,)) for model in ("peagle", "tensorrt_llm_bls")]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._is_closing.set()
        for thread in self._threads:
            thread.join(30)

    def _ask(self, model: str) -> None:
        while not self._is_closing.is_set():
            try:
                self._client.generate(ASK, model=model)
                self.num_answers += 1
            except Exception as error:
                self.faults.append(f"{model}: {error}")


@pytest.fixture
def server(repository: Path, tmp_path: Path) -> Iterator[TritonServer]:
    shutil.copytree(repository, tmp_path / "models")
    with ExplicitServer(tmp_path / "models", choose_ports(), log_path=tmp_path / "log") as server:
        yield server


def load_peagle(server: TritonServer) -> list[str]:
    """Tells the server to look again; the versions it then serves."""
    address = f"http://127.0.0.1:{server.ports.http}"
    httpx.post(f"{address}/v2/repository/models/peagle/load", timeout=120).raise_for_status()
    versions: list[str] = httpx.get(f"{address}/v2/models/peagle").json()["versions"]
    return versions


def test_a_version_is_rolled_out_and_back_and_no_request_fails(server: TritonServer, tmp_path: Path) -> None:
    peagle = tmp_path / "models" / "peagle"
    load = Load(server.ports.http)
    running: list[int] = []
    client = HttpClient(server.ports.http)
    stream = client.generate_stream(LONG)
    next(stream)
    reader = threading.Thread(target=lambda: running.extend(piece["sequence_length"] for piece in stream))
    reader.start()
    try:
        shutil.copytree(peagle / "1", peagle / ".incoming")
        (peagle / ".incoming").rename(peagle / "2")
        assert load_peagle(server) == ["2"]
        reader.join(60)
        assert 1 + sum(running) == 400
        assert client.generate(ASK)["model_version"] == "2"
        (peagle / "2").rename(peagle / ".withdrawn")
        assert load_peagle(server) == ["1"]
        assert client.generate(ASK)["model_version"] == "1"
    finally:
        load.close()
    assert load.faults == []
    assert load.num_answers > 10


def probe(server: TritonServer) -> int:
    """Exit code of the manifests' liveness probe, against this server's port."""
    pod = yaml.safe_load(MANIFEST.read_text())["spec"]["template"]["spec"]
    command = pod["containers"][0]["livenessProbe"]["exec"]["command"]
    here = [text.replace("127.0.0.1:8000", f"127.0.0.1:{server.ports.http}") for text in command]
    return subprocess.run(here, capture_output=True, timeout=60).returncode


def test_the_probes_tell_the_truth_about_a_dead_model_process(server: TritonServer) -> None:
    address = f"http://127.0.0.1:{server.ports.http}"
    assert httpx.get(f"{address}/v2/models/peagle/ready").status_code == 200
    assert probe(server) == 0
    # Waiting for a slot is no reason to be ended.
    clients = [HttpClient(server.ports.http).generate_stream(LONG) for _ in range(12)]
    for stream in clients[:4]:
        next(stream)
    assert probe(server) == 0
    for stream in clients:
        stream.close()
    for pid in children(server.pid):
        if json.dumps("peagle")[1:-1] in Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: probe(server) != 0, 60)
