"""A drafter for another target is refused, and the message says in what they disagree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peagle_trt.errors import CheckpointError
from peagle_trt.readers import check_pair, draft_to_target_ids, read_drafter, read_target
from tests.support.checkpoints import edit_tensors
from tests.support.models import save_drafter


def layers(*ids: int) -> dict[str, Any]:
    return {"eagle_config": {"eagle_aux_hidden_state_layer_ids": list(ids)}}


MISFITS: dict[str, tuple[dict[str, Any], str]] = {
    "vocabulary": ({"vocab_size": 301, "draft_vocab_size": 301}, "expected 300, the target's, found 301"),
    "width": ({"target_hidden_size": 32}, "expected 64, the target's hidden size, found 32"),
    "too_deep": (layers(1, 3, 7), "from 0 to 6, the target's layers, found streams entering 1, 3, 7"),
    "unordered": (layers(3, 1, 5), "distinct and ascending, .*, found streams entering 3, 1, 5"),
    "repeated": (layers(1, 1, 5), "distinct and ascending, .*, found streams entering 1, 1, 5"),
    "mask_token": ({"mask_token_id": 300}, "mask token does not fit: expected below 300, .*, found 300"),
    "embeddings": (
        {"hidden_size": 32, "target_hidden_size": 64},
        "`embed_tokens` does not fit: .* width of 64 to share",
    ),
}


@pytest.mark.parametrize(("settings", "message"), MISFITS.values(), ids=MISFITS.keys())
def test_a_misfit_is_refused(llama_folder: Path, tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    save_drafter(tmp_path, **settings)
    with pytest.raises(CheckpointError, match=message):
        check_pair(read_target(llama_folder), read_drafter(tmp_path))


def test_the_output_of_the_last_layer_is_a_stream_too(llama_folder: Path, tmp_path: Path) -> None:
    save_drafter(tmp_path, **layers(0, 3, 6))
    check_pair(read_target(llama_folder), read_drafter(tmp_path))


MAPS = {
    "absolute_ids": (np.arange(150, 270), "below 300, found offsets that lead to token 388"),
    "negative": (np.full(120, -1), "lead to token -1"),
    "not_distinct": (np.r_[1, np.zeros(119, int)], "found 120 draft ids for 119 tokens"),
}


@pytest.mark.parametrize(("offsets", "message"), MAPS.values(), ids=MAPS.keys())
def test_a_vocabulary_map_that_leads_astray_is_refused(
    llama_folder: Path, tmp_path: Path, offsets: np.ndarray, message: str
) -> None:
    save_drafter(tmp_path, draft_vocab_size=120)
    edit_tensors(tmp_path, d2t=offsets.astype(np.int64))
    with pytest.raises(CheckpointError, match=message):
        check_pair(read_target(llama_folder), read_drafter(tmp_path))


def test_offsets_become_target_ids(tmp_path: Path) -> None:
    save_drafter(tmp_path, draft_vocab_size=3)
    edit_tensors(tmp_path, d2t=np.int64([4, 4, 9]))
    assert draft_to_target_ids(read_drafter(tmp_path)).tolist() == [4, 5, 11]
