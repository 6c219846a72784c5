"""A real server, the door in front of it, and the official client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest

from peagle_trt.deploy.client import read_metrics
from peagle_trt.deploy.ports import choose_ports
from peagle_trt.deploy.repository import assemble_repository
from peagle_trt.deploy.server import TritonServer
from peagle_trt.openai_door.app import make_app
from peagle_trt.openai_door.listener import DoorListener, bind
from peagle_trt.openai_door.opening import describe
from peagle_trt.openai_door.settings import DoorSettings


@dataclass(frozen=True)
class Door:
    """An open door and the server behind it."""

    server: TritonServer
    settings: DoorSettings

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.settings.port}"

    def client(self, api_key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.address}/v1", api_key=api_key, max_retries=0, timeout=60)

    def metrics(self) -> dict[str, float]:
        return read_metrics(self.server.ports.metrics)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folder = Path(__file__).parent
    for item in items:
        if folder in item.path.parents:
            item.add_marker(pytest.mark.triton)


@pytest.fixture(scope="session")
def server(tiny_build: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    folder = tmp_path_factory.mktemp("door")
    repository = assemble_repository(tiny_build, folder / "repository").path
    with TritonServer(repository, choose_ports(), log_path=folder / "tritonserver.log") as server:
        yield server


@pytest.fixture(scope="session")
def open_door(server: TritonServer, tiny_build: Path) -> Iterator[Callable[[DoorSettings], Door]]:
    opened: list[DoorListener] = []

    def open_one(settings: DoorSettings) -> Door:
        served = describe(tiny_build, grpc_port=server.ports.grpc, is_alive=lambda: True)
        opened.append(DoorListener(make_app(served, settings), settings, bind(settings)).__enter__())
        return Door(server, settings)

    yield open_one
    for listener in opened:
        listener.close()


@pytest.fixture(scope="session")
def door(open_door: Callable[[DoorSettings], Door]) -> Door:
    return open_door(DoorSettings(port=choose_ports().http))
