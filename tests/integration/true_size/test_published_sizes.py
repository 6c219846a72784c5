"""Published sizes on a small machine; the numbers that `scripts/prove_true_size` prints, held to their limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.prove_true_size import prove_build, prove_drafter, prove_graphs, prove_layer
from scripts.synthesize_checkpoint import published_models

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("model", published_models())
def test_graphs_of_a_published_target_take_a_minute_and_no_disk(model: str, tmp_path: Path) -> None:
    found = prove_build(model, tmp_path, 1)
    assert found["within_limits"], found
    assert len(prove_graphs(model, tmp_path, 1)["checked"]) == 6


@pytest.mark.parametrize("model", published_models())
def test_a_layer_of_published_size_equals_transformers(model: str, tmp_path: Path) -> None:
    prove_layer(model, tmp_path, 2)


@pytest.mark.parametrize("model", published_models())
def test_a_drafter_of_published_size_equals_torch(model: str, tmp_path: Path) -> None:
    assert prove_drafter(model, tmp_path, 2)["drafts_equal"]
