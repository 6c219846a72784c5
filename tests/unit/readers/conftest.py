"""Checkpoints that a test may damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.checkpoints import copy_folder
from tests.support.models import save_drafter, save_target


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    save_target(folder)
    return folder


@pytest.fixture
def target_folder(llama_folder: Path, tmp_path: Path) -> Path:
    return copy_folder(llama_folder, tmp_path / "target")


@pytest.fixture
def drafter_folder(tmp_path: Path) -> Path:
    save_drafter(tmp_path / "drafter")
    return tmp_path / "drafter"
