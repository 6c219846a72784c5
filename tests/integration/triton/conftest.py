"""One build of the tiny pair and one real server for all tests of this folder."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from peagle_trt.deploy.client import GrpcStream, HttpClient, read_metrics
from peagle_trt.deploy.hosting.settings import HostSettings
from peagle_trt.deploy.ports import choose_ports
from peagle_trt.deploy.repository import assemble_repository
from peagle_trt.deploy.server import TritonServer

PUBLICATION_SECONDS = 0.5
"""More than twice the period at which the model publishes."""

LASTING = {
    "text_input": "Question: Tom has 3 apples and buys 4 more. How many apples does he have?\nAnswer:",
    "max_tokens": 900,
    "end_id": -1,
    "draft_tokens": 0,
    "temperature": 1.0,
    "num_return_sequences": 16,
}
"""More answers than the engine has slots, as long as they may be: seconds of work, for tests that interrupt it."""


def _own_counters(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name.startswith("peagle_")}


@dataclass(frozen=True)
class Served:
    """A running server and its doors."""

    server: TritonServer
    http: HttpClient

    def grpc(self, payload: dict[str, Any], model: str = "peagle") -> GrpcStream:
        return GrpcStream(self.server.ports.grpc, payload, model=model)

    def metrics(self) -> dict[str, float]:
        return read_metrics(self.server.ports.metrics)

    def settled_metrics(self) -> dict[str, float]:
        """The counters once nothing of an earlier test is still to come: the model publishes them from time to time."""
        earlier, counted = {}, _own_counters(self.metrics())
        while counted != earlier:
            time.sleep(PUBLICATION_SECONDS)
            earlier, counted = counted, _own_counters(self.metrics())
        return self.metrics()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folder = Path(__file__).parent
    for item in items:
        if folder in item.path.parents:
            item.add_marker(pytest.mark.triton)


@pytest.fixture(scope="session")
def repository(tiny_build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = HostSettings(log_requests=True)
    return assemble_repository(tiny_build, tmp_path_factory.mktemp("served") / "repository", settings=settings).path


@pytest.fixture(scope="session")
def served(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    log_path = tmp_path_factory.mktemp("log") / "tritonserver.log"
    with TritonServer(repository, choose_ports(), log_path=log_path) as server:
        yield Served(server=server, http=HttpClient(server.ports.http))
