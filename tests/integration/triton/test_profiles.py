"""One repository, two configurations: the server opens the build that it is told to."""

from __future__ import annotations

from pathlib import Path

from peagle_trt.deploy.client import HttpClient
from peagle_trt.deploy.ports import choose_ports
from peagle_trt.deploy.repository import assemble_repository
from peagle_trt.deploy.server import TritonServer
from tests.integration.triton.conftest import Served


def test_the_second_configuration_answers_from_the_second_build(
    served: Served, tiny_build: Path, tmp_path: Path
) -> None:
    path = assemble_repository(tiny_build, tmp_path / "repository", cpu_build_path=tiny_build).path
    # The first build is gone: whoever answers has the second one open.
    (path / "peagle/1/build/manifest.json").unlink()
    payload = {"text_input": "What is 2 + 3?", "max_tokens": 12}
    with TritonServer(path, choose_ports(), log_path=tmp_path / "server.log", profile="cpu") as server:
        answer = HttpClient(server.ports.http).generate(payload)
    assert answer["text_output"] == served.http.generate(payload)["text_output"]
