"""P-EAGLE heads in our dialect, and every refusal; other spellings are in test_dialects.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peagle_trt.errors import CheckpointError
from peagle_trt.readers import read_drafter, read_head
from peagle_trt.spec.drafter import NO_MASK_TOKEN
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
    "all_biases": {"attention_bias": True, "mlp_bias": True, "carries": ("o_bias",)},
    "head_norms": {"model_type": "qwen3"},
    "two_states": {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 4]}},
    "narrow": {"hidden_size": 32, "target_hidden_size": 64, "carries": ("embed_tokens", "lm_head")},
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
    "no_width": ({"layer_types": ["sliding_attention"] * 2}, "`sliding_window` is missing"),
    "kinds": ({"layer_types": ["chunked_attention"] * 2}, "`layer_types` must be `full_attention` or `sliding_att"),
    "count": ({"layer_types": ["full_attention"]}, "`layer_types` must be one entry for each of 2 layers"),
    "contradiction": (
        {"layer_types": ["sliding_attention"] * 2, "sliding_window": 4, "use_sliding_window": False},
        "`use_sliding_window` must be true while `layer_types` names sliding layers",
    ),
    "activation": ({"hidden_act": "gelu"}, "`hidden_act` must be `silu` or `swish`"),
    "one_window": ({"sliding_window": 4}, "`sliding_window` must be null, or `layer_types` beside it; found `4`"),
    "used_window": ({"sliding_window": 4, "use_sliding_window": True}, "`sliding_window` must be null, or"),
    "sequential": ({"parallel_drafting": False}, "`parallel_drafting` must be true in a head that carries"),
    "quantized": ({"quantization_config": {"bits": 4}}, "`quantization_config.quant_method` is missing"),
    "logit_scale": ({"logit_scale": 0.5}, "`logit_scale` must be `1`"),
    "eps": ({"rms_norm_eps": 10**400}, "`rms_norm_eps` must be a number above 0"),
    "theta": ({"rope_theta": 0}, "`rope_theta` must be a number above 1"),
    "depths": ({"num_depths": 0}, "`num_depths` must be a whole number from 1"),
    "layers": ({"num_hidden_layers": 10**12}, "`num_hidden_layers` must be a whole number from 1 to 4096"),
    "key_heads": ({"num_key_value_heads": 3}, "`num_key_value_heads` must be a divisor"),
    "two_norms": ({"norm_before_fc": True, "fc_norm": True}, "`fc_norm` must be false while `norm_before_fc` is true"),
    "missing_norm": ({"norm_before_fc": True}, r"lacks 1 of 23 tensors, first `input_norm.weight` \[192\]"),
    "odd_width": ({"target_hidden_size": 50}, "`fc` reads 192 columns, no whole number of states of 50"),
    "ropes": (
        {"rope_parameters": {"rope_theta": 10000.0}, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        "`rope_scaling` and `rope_parameters` disagree",
    ),
    "fusion": ({"eagle_config": {"eh_proj_before_attn": True}}, "`eagle_config.eh_proj_before_attn` must be false"),
    "irregular": ({"eagle_config": {"next_layer_regular": False}}, "`eagle_config.next_layer_regular` must be true"),
    "fewer_aux": (
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3]}},
        r"`fc` reads 3 state\(s\) of 64, but 2 auxiliary layer\(s\) are named: \[1, 3\]",
    ),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_head_that_cannot_be_honoured_is_refused(drafter_folder: Path, changes: dict[str, Any], message: str) -> None:
    edit_config(drafter_folder, **changes)
    with pytest.raises(CheckpointError, match=message):
        read_drafter(drafter_folder)


def test_a_plain_eagle_3_head_is_recognised_and_refused(tmp_path: Path) -> None:
    save_drafter(tmp_path, mask_token_id=None)
    with pytest.raises(CheckpointError, match="plain EAGLE-3 head"):
        read_drafter(tmp_path)
    plain = read_head(tmp_path)
    assert not plain.config.is_parallel
    assert plain.config.mask_token_id == NO_MASK_TOKEN
    assert "mask_hidden" not in plain.weights


def test_a_parallel_head_without_its_mask_state_is_damaged(drafter_folder: Path) -> None:
    edit_tensors(drafter_folder, mask_hidden=None)
    with pytest.raises(CheckpointError, match="says that the head is parallel, but it carries no `mask_hidden`"):
        read_head(drafter_folder)


def test_an_unknown_spelling_is_refused_with_the_known_ones(drafter_folder: Path) -> None:
    rename_tensors(drafter_folder, "layers.0.", "first.layer.")
    with pytest.raises(CheckpointError, match="not an EAGLE-3 or P-EAGLE head in a known spelling") as caught:
        read_drafter(drafter_folder)
    assert "midlayer.hidden_norm.weight" in caught.value.hint


def test_a_mask_token_that_the_file_does_not_name_may_be_given(drafter_folder: Path) -> None:
    edit_config(drafter_folder, mask_token_id=None)
    assert read_drafter(drafter_folder, mask_token_id=7).config.mask_token_id == 7


def test_a_mask_token_that_contradicts_the_file_is_refused(drafter_folder: Path) -> None:
    with pytest.raises(CheckpointError, match="several mask tokens: `mask_token_id` = 299, --mask-token-id = 7"):
        read_drafter(drafter_folder, mask_token_id=7)


def test_windows_belong_to_their_layers(drafter_folder: Path) -> None:
    edit_config(drafter_folder, layer_types=["full_attention", "sliding_attention"], sliding_window=4)
    assert read_drafter(drafter_folder).config.attention_windows == (0, 4)


def test_what_is_left_out_is_named_with_the_reason(drafter_folder: Path) -> None:
    edit_tensors(drafter_folder, t2d=np.ones(VOCABULARY, bool), verifier_norm__weight=np.ones(HIDDEN, np.float32))
    left_out = {item.spec.name: item.reason for item in read_drafter(drafter_folder).left_out}
    assert left_out == {
        "t2d": "the inverse of d2t; only training reads it",
        "verifier_norm.weight": "the target's, kept for training",
    }


def test_unnamed_layers_take_the_usual_default_of_the_target(drafter_folder: Path) -> None:
    edit_config(drafter_folder, eagle_config=None)
    # Source: vLLM's default (2, n // 2, n - 3).
    assert read_drafter(drafter_folder, num_target_layers=30).config.aux_layer_ids == (2, 15, 27)


def test_a_window_that_is_not_used_is_no_obstacle(drafter_folder: Path) -> None:
    edit_config(drafter_folder, sliding_window=4096, use_sliding_window=False, hidden_act="silu", logit_scale=1.0)
    assert read_drafter(drafter_folder).config.num_layers == 2


def test_a_bias_of_fc_that_nothing_would_add_is_named(drafter_folder: Path) -> None:
    edit_tensors(drafter_folder, fc__bias=np.ones(HIDDEN, np.float32))
    with pytest.raises(CheckpointError, match=r"`?fc\.bias`?"):
        read_drafter(drafter_folder)
