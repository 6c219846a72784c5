"""Heads that training reads, and those it refuses rather than walks wrongly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from peagle_trt.errors import CheckpointError
from peagle_trt.train.checkpoint import read_head
from tests.support.models import save_drafter

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "windows": ({"layer_types": ["sliding_attention"] * 2, "sliding_window": 4}, "a head with sliding windows"),
    "head_norms": ({"model_type": "qwen3"}, "a head with norms of queries and keys"),
    "own_tables": ({"carries": ("lm_head",)}, "a head with own embeddings or lm_head"),
}


@pytest.mark.parametrize(("settings", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_part_that_training_does_not_know_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    save_drafter(tmp_path, **settings)
    with pytest.raises(CheckpointError, match=message):
        read_head(tmp_path, torch.float32)
