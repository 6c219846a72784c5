"""A hub on loopback with one small repository, and an empty cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest

from peagle_trt.catalog.entries import HubRepository
from tests.support.hub import FakeHub, serve_hub

REPOSITORY = "someone/a-model"
WEIGHTS = bytes(range(256)) * 2000


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    files = {
        "config.json": b'{"x": 1}',
        "model.safetensors": WEIGHTS,
        "modeling.py": b"raise SystemExit",
        "a.bin": b"x",
    }
    with serve_hub(FakeHub(repositories={REPOSITORY: files})) as served:
        # The library reads the environment once, when it is imported.
        template = served.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", served.address)
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        # What it holds back before it writes; ten million bytes as it comes.
        monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 1 << 16)
        yield served


@pytest.fixture
def source() -> HubRepository:
    return HubRepository(repository=REPOSITORY, revision="main", licence="none")
