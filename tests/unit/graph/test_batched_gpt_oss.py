"""gpt-oss in the batched graphs: every peculiarity seen to matter, and half precision."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peagle_trt.engine.protocol import TargetRows
from tests.support.batched import BatchedEngine, open_batched_pair
from tests.support.models import VOCABULARY, save_drafter, save_target
from tests.unit.graph.test_experts import CHANGES

HALF_TOLERANCE = 0.1
"""On logits up to 5.2, over six layers in float16: measured 0.041; whatever is left out moves one by more."""


def token_ids_of(length: int) -> np.ndarray:
    """Of other seeds, a row is as near to one expert as to the next, and float16 sends it to the other."""
    return np.random.default_rng(0).integers(3, VOCABULARY - 1, length).astype(np.int32)


def read_in_two(engine: BatchedEngine, token_ids: np.ndarray) -> np.ndarray:
    """Logits of every row, a prompt and then a verify step past the window."""
    found = []
    for start, stop in ((0, len(token_ids) - 8), (len(token_ids) - 8, len(token_ids))):
        rows = TargetRows(slot=1, token_ids=token_ids[start:stop], start_position=start, num_logit_rows=stop - start)
        found.append(engine.run_target([rows])[0].logits.copy())
    return np.concatenate(found)


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    folder = tmp_path_factory.mktemp("gpt_oss")
    save_target(folder / "target", "GptOssForCausalLM", seed=11)
    save_drafter(folder / "drafter")
    engine = open_batched_pair(folder / "target", folder / "drafter", folder / "build", max_batch_size=2).engine
    return folder / "target", read_in_two(engine, token_ids_of(40))


@pytest.mark.parametrize("change", CHANGES)
def test_a_part_that_is_left_out_would_show(gpt_oss: tuple[Path, np.ndarray], change: Callable[[Any], None]) -> None:
    from transformers import GptOssForCausalLM

    folder, found = gpt_oss
    model = GptOssForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    inputs = torch.from_numpy(token_ids_of(40)).long()[None]
    with torch.no_grad():
        np.testing.assert_allclose(found, model(inputs).logits[0].numpy(), atol=1e-4)
        change(model)
        assert np.abs(found - model(inputs).logits[0].numpy()).max() > 0.05


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3ForCausalLM", "GptOssForCausalLM"])
def test_float16_stays_close(tmp_path: Path, architecture: str) -> None:
    model = save_target(tmp_path / "target", architecture)
    save_drafter(tmp_path / "drafter")
    paths = (tmp_path / "target", tmp_path / "drafter", tmp_path / "build")
    engine = open_batched_pair(*paths, element="FLOAT16", max_batch_size=2).engine
    token_ids = token_ids_of(40)
    with torch.no_grad():
        expected = model(torch.from_numpy(token_ids).long()[None]).logits[0].numpy()
    np.testing.assert_allclose(read_in_two(engine, token_ids), expected, atol=HALF_TOLERANCE, rtol=0)


def test_a_place_without_a_sequence_may_write_at_the_end_of_its_cache(tmp_path: Path) -> None:
    model = save_target(tmp_path / "target", "GptOssForCausalLM")
    save_drafter(tmp_path / "drafter")
    paths = (tmp_path / "target", tmp_path / "drafter", tmp_path / "build")
    engine = open_batched_pair(*paths, max_batch_size=2, max_sequence_length=64).engine
    engine.target.lengths[:] = engine.target.capacity
    token_ids = token_ids_of(40)
    with torch.no_grad():
        expected = model(torch.from_numpy(token_ids).long()[None]).logits[0].numpy()
    np.testing.assert_allclose(read_in_two(engine, token_ids), expected, atol=1e-4, rtol=0)
