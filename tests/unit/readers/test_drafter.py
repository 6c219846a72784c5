"""P-EAGLE heads in every dialect, and every refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peagle_trt.errors import CheckpointError
from peagle_trt.readers import read_drafter
from peagle_trt.spec.names import drafter_shapes
from tests.support.checkpoints import edit_config, edit_tensors, rename_tensors
from tests.support.models import HIDDEN, VOCABULARY, save_drafter

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "biased": {"attention_bias": True},
    "normed": {"norm_before_fc": True},
    "normed_in_parts": {"fc_norm": True},
    "reduced": {"draft_vocab_size": 120},
    "one_layer": {"num_hidden_layers": 1},
}


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_tensor_of_a_head_is_read(tmp_path: Path, settings: dict[str, Any]) -> None:
    tensors = save_drafter(tmp_path, **settings)
    drafter = read_drafter(tmp_path)
    assert {name: lazy.shape for name, lazy in drafter.weights.items()} == drafter_shapes(drafter.config)
    assert len(drafter.weights) == len(tensors)
    np.testing.assert_array_equal(drafter.weights.load("mask_hidden"), tensors["mask_hidden"].reshape(-1))
    q_proj = drafter.weights.load("layers.0.q_proj")
    np.testing.assert_array_equal(q_proj, tensors["layers.0.self_attn.q_proj.weight"])


def test_the_amazon_spelling_gives_the_same_head(tmp_path: Path) -> None:
    save_drafter(tmp_path / "ours")
    save_drafter(tmp_path / "theirs")
    rename_tensors(tmp_path / "theirs", "layers.0.", "midlayer.")
    edit_config(tmp_path / "theirs", mask_token_id=None, ptd_token_id=299)
    ours, theirs = read_drafter(tmp_path / "ours"), read_drafter(tmp_path / "theirs")
    assert theirs.config.dialect == "amazon"
    assert theirs.config.mask_token_id == ours.config.mask_token_id
    for name in ours.weights:
        np.testing.assert_array_equal(theirs.weights.load(name), ours.weights.load(name))


def test_own_embeddings_and_output_layer_are_noticed(drafter_folder: Path) -> None:
    table = np.ones((VOCABULARY, HIDDEN), np.float32)
    edit_tensors(drafter_folder, embed_tokens__weight=table, lm_head__weight=2 * table, t2d=np.ones(VOCABULARY, bool))
    drafter = read_drafter(drafter_folder)
    assert drafter.config.has_own_embeddings
    assert drafter.config.has_own_lm_head
    assert "t2d" not in drafter.weights


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no_mask_token": ({"mask_token_id": None}, "names no mask token"),
    "two_mask_tokens": ({"pard_token": 5}, "several mask tokens: `mask_token_id` = 299, `pard_token` = 5"),
    "no_aux": ({"eagle_config": {"use_aux_hidden_state": False}}, "`eagle_config.use_aux_hidden_state` must be true"),
    "unnamed_layers": ({"eagle_config": None}, "does not name the target's layers"),
    "no_map": ({"draft_vocab_size": 120}, "`draft_vocab_size` is 120 of 300, but there is no `d2t`"),
    "larger_vocabulary": ({"draft_vocab_size": 301}, "`draft_vocab_size` must be at most `vocab_size`, 300"),
    "window": ({"layer_types": ["sliding_attention"] * 2}, "`layer_types` must be `full_attention`"),
    "activation": ({"hidden_act": "gelu"}, "`hidden_act` must be `silu` or `swish`"),
    "one_window": ({"sliding_window": 4}, "`sliding_window` must be null; found `4`"),
    "used_window": ({"sliding_window": 4, "use_sliding_window": True}, "`sliding_window` must be null"),
    "sequential": ({"parallel_drafting": False}, "`parallel_drafting` must be true; found `false`"),
    "quantized": ({"quantization_config": {"bits": 4}}, "already quantized"),
    "logit_scale": ({"logit_scale": 0.5}, "`logit_scale` must be `1`"),
    "eps": ({"rms_norm_eps": 10**400}, "`rms_norm_eps` must be a number above 0"),
    "theta": ({"rope_theta": 0}, "`rope_theta` must be a number above 1"),
    "depths": ({"num_depths": 0}, "`num_depths` must be a whole number from 1"),
    "layers": ({"num_hidden_layers": 10**12}, "`num_hidden_layers` must be a whole number from 1 to 4096"),
    "key_heads": ({"num_key_value_heads": 3}, "`num_key_value_heads` must be a divisor"),
    "two_norms": ({"norm_before_fc": True, "fc_norm": True}, "`fc_norm` must be false while `norm_before_fc` is true"),
    "missing_norm": ({"norm_before_fc": True}, r"lacks 1 of 23 tensors, first `input_norm.weight` \[192\]"),
    "fewer_aux": (
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3]}},
        r"`fc.weight` has the wrong shape: expected \[64, 128\], found \[64, 192\]",
    ),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_head_that_cannot_be_honoured_is_refused(drafter_folder: Path, changes: dict[str, Any], message: str) -> None:
    edit_config(drafter_folder, **changes)
    with pytest.raises(CheckpointError, match=message):
        read_drafter(drafter_folder)


def test_a_plain_eagle_3_head_is_recognised_and_refused(drafter_folder: Path) -> None:
    edit_tensors(drafter_folder, mask_hidden=None)
    with pytest.raises(CheckpointError, match="plain EAGLE-3 head"):
        read_drafter(drafter_folder)


def test_an_unknown_spelling_is_refused_with_the_known_ones(drafter_folder: Path) -> None:
    rename_tensors(drafter_folder, "layers.0.", "model.layers.0.")
    with pytest.raises(CheckpointError, match="not a P-EAGLE head in a known spelling") as caught:
        read_drafter(drafter_folder)
    assert "amazon" in caught.value.hint


def test_unnamed_layers_take_the_usual_default_of_the_target(drafter_folder: Path) -> None:
    edit_config(drafter_folder, eagle_config=None)
    # Source: vLLM's default (2, n // 2, n - 3).
    assert read_drafter(drafter_folder, num_target_layers=30).config.aux_layer_ids == (2, 15, 27)


def test_a_window_that_is_not_used_is_no_obstacle(drafter_folder: Path) -> None:
    edit_config(drafter_folder, sliding_window=4096, use_sliding_window=False, hidden_act="silu", logit_scale=1.0)
    assert read_drafter(drafter_folder).config.num_layers == 2
