"""A target that is deep enough to have the usual auxiliary layers."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle_trt.readers import TargetCheckpoint, read_target
from tests.support.models import save_target

NUM_LAYERS = 14


@pytest.fixture(scope="session")
def deep_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deep")
    save_target(folder, num_hidden_layers=NUM_LAYERS)
    return folder


@pytest.fixture(scope="session")
def deep_target(deep_folder: Path) -> TargetCheckpoint:
    return read_target(deep_folder)
