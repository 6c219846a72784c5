"""The tiny pair, built once for every test that wants a real build."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from peagle_trt.decode.session import LoadedBuild, open_build


@pytest.fixture(scope="session")
def tiny_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from peagle_trt.cli.main import run

    path = tmp_path_factory.mktemp("builds") / "tiny"
    assert run(["--quiet", "build", "--target", "tiny", "-o", str(path)]) == 0
    return path


@pytest.fixture(scope="session")
def loaded(tiny_build: Path) -> Iterator[LoadedBuild]:
    """The tiny build in this process."""
    loaded = open_build(tiny_build, num_threads=1)
    yield loaded
    loaded.engine.close()
