"""A small pair, with its head as a build for TensorRT-LLM writes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from peagle_trt.readers import TargetCheckpoint, read_drafter, read_target
from tests.support.fake_trtllm import installed
from tests.support.models import save_drafter, save_target
from tests.support.trtllm_models import write_served_head


@pytest.fixture(scope="session")
def small_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[TargetCheckpoint, Path]:
    """The target, whose configuration names the layers, and the folder of the plain head beside it."""
    folder = tmp_path_factory.mktemp("small")
    save_target(folder / "target")
    save_drafter(folder / "drafter", carries=("embed_tokens", "lm_head"))
    target, layers = read_target(folder / "target"), read_drafter(folder / "drafter").config.aux_layer_ids
    config = msgspec.structs.replace(target.config, aux_layer_ids=layers)
    return replace(target, config=config), folder


@pytest.fixture
def served_head(small_pair: tuple[TargetCheckpoint, Path], tmp_path: Path) -> Path:
    folder = small_pair[1]
    return write_served_head(folder / "target", folder / "drafter", tmp_path / "served")


@pytest.fixture(params=["1.2.1", "1.4"])
def registry(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """Targets of a release, with ours registered."""
    with installed(request.param) as found:
        from peagle_trt.trtllm.plugin import install

        install()
        yield found
