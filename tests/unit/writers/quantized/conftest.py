"""Checkpoints that tests quantize."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.checkpoints import narrow_tensors
from tests.support.models import save_drafter, save_target
from tests.support.quantized_export import write_shrunk


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders `llama`, `head`, and `gpt-oss` and `qwen` with a target and a drafter each."""
    folder = tmp_path_factory.mktemp("sources")
    save_target(folder / "llama", num_hidden_layers=2)
    narrow_tensors(folder / "llama")
    save_drafter(folder / "head")
    narrow_tensors(folder / "head")
    write_shrunk(folder / "gpt-oss", "gpt-oss-20b")
    write_shrunk(folder / "qwen", "qwen3-coder-30b-a3b")
    return folder
