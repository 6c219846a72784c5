"""A small pair and the build of it that tests ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle_trt.spec import BuildSpec
from tests.support.checkpoints import copy_folder, save_byte_tokenizer
from tests.support.models import save_drafter, save_target


@pytest.fixture(scope="session")
def pair_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    save_target(folder / "target", num_hidden_layers=6)
    save_byte_tokenizer(folder / "target")
    save_drafter(folder / "head")
    return folder


@pytest.fixture
def spec(pair_folder: Path, tmp_path: Path) -> BuildSpec:
    copy_folder(pair_folder / "target", tmp_path / "target")
    copy_folder(pair_folder / "head", tmp_path / "head")
    return BuildSpec(
        name="random",
        target_path=tmp_path / "target",
        drafter_path=tmp_path / "head",
        tokenizer_path=tmp_path / "target",
        output_path=tmp_path / "out" / "build",
        draft_tokens=4,
        max_batch_size=2,
        max_sequence_length=64,
    )
