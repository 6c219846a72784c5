"""Heads as other projects spell them give the same head, and heads of other methods are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peagle_trt.errors import CheckpointError
from peagle_trt.readers import read_head
from peagle_trt.readers.checkpoint import DrafterCheckpoint
from tests.support.checkpoints import edit_config, edit_tensors
from tests.support.heads import respell
from tests.support.models import save_drafter

# For a target of six layers, three of them; what a head reads that names none: the usual (2, n // 2, n - 3) of n = 14.
DEFAULT, LAYERS = (2, 7, 11), 14
# Spelling, how it numbers layers, what it can say about them.
PARALLEL = {
    "amazon": ("inputs", (1, 3, 5)),
    "speculators": ("inputs", (1, 3, 5)),
    "automodel": ("not said", DEFAULT),
    "specforge": ("not said", DEFAULT),
    "trtllm": ("outputs", (1, 3, 5)),
}
PLAIN = {
    "safeailab": ("not said", DEFAULT),
    "speculators": ("inputs", (1, 3, 5)),
    "nvidia": ("outputs", (1, 3, 5)),
    "angelslim": ("outputs", (1, 3, 5)),
    "trtllm": ("outputs", (1, 3, 5)),
}


def read_respelled(folder: Path, dialect: str, **settings: Any) -> tuple[DrafterCheckpoint, DrafterCheckpoint]:
    """The same head in our spelling and in another's."""
    save_drafter(folder / "ours", **settings)
    save_drafter(folder / "theirs", **settings)
    respell(folder / "theirs", dialect)
    mask = 299 if dialect == "specforge" else None
    return read_head(folder / "ours"), read_head(folder / "theirs", num_target_layers=LAYERS, mask_token_id=mask)


def assert_same_weights(ours: DrafterCheckpoint, theirs: DrafterCheckpoint) -> None:
    assert theirs.weights.keys() == ours.weights.keys()
    for name in ours.weights:
        np.testing.assert_array_equal(theirs.weights.load(name), ours.weights.load(name))


@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("dialect", PARALLEL)
def test_a_parallel_head_is_the_same_in_every_spelling(tmp_path: Path, dialect: str, num_layers: int) -> None:
    ours, theirs = read_respelled(tmp_path, dialect, num_hidden_layers=num_layers, draft_vocab_size=120)
    assert (theirs.config.aux_numbering, theirs.config.aux_layer_ids) == PARALLEL[dialect]
    assert theirs.config.dialect == dialect
    assert theirs.config.mask_token_id == ours.config.mask_token_id
    assert theirs.config.rope == ours.config.rope
    assert_same_weights(ours, theirs)


@pytest.mark.parametrize("dialect", PLAIN)
def test_a_plain_head_is_the_same_in_every_spelling(tmp_path: Path, dialect: str) -> None:
    ours, theirs = read_respelled(
        tmp_path, dialect, mask_token_id=None, draft_vocab_size=120, num_hidden_layers=1, carries=("lm_head",)
    )
    assert (theirs.config.aux_numbering, theirs.config.aux_layer_ids) == PLAIN[dialect]
    assert not theirs.config.is_parallel
    assert_same_weights(ours, theirs)


@pytest.mark.parametrize(("mask", "expected"), [(299, False), (None, True)])
def test_speculators_own_defaults_hold(tmp_path: Path, mask: int | None, expected: bool) -> None:
    # vLLM: an absent `norm_before_residual` is true for eagle3 and false for peagle.
    save_drafter(tmp_path, mask_token_id=mask)
    respell(tmp_path, "speculators")
    assert read_head(tmp_path).config.norm_before_residual is expected


def test_speculators_nested_settings_are_found(tmp_path: Path) -> None:
    save_drafter(tmp_path, model_type="qwen3", fc_norm=True, rope_theta=5e5)
    respell(tmp_path, "speculators")
    config = json.loads((tmp_path / "config.json").read_text())
    config["transformer_layer_config"] |= {
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 2048,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    head = read_head(tmp_path).config
    assert head.attention_windows == (2048, 0)
    assert (head.has_qk_norm, head.has_fc_norm, head.num_depths, head.rope.theta) == (True, True, 6, 5e5)


def test_speculators_layers_of_another_family_are_refused(tmp_path: Path) -> None:
    save_drafter(tmp_path)
    respell(tmp_path, "speculators", transformer_layer_config={"model_type": "deepseek_v3"})
    with pytest.raises(CheckpointError, match=r"`transformer_layer_config\.model_type` must be `llama` or `qwen3`"):
        read_head(tmp_path)


def test_a_fourth_layer_that_fc_does_not_read_is_named(tmp_path: Path) -> None:
    # Speculators' trainer adds the target's last layer, which feeds its loss and not the head.
    save_drafter(tmp_path)
    respell(tmp_path, "speculators", eagle_aux_hidden_state_layer_ids=[1, 3, 5, 6])
    with pytest.raises(CheckpointError, match=r"reads 3 state\(s\) of 64, but 4 auxiliary layer\(s\) are named"):
        read_head(tmp_path)


def test_a_mask_token_is_asked_for_where_the_trainer_keeps_it_to_itself(tmp_path: Path) -> None:
    save_drafter(tmp_path)
    respell(tmp_path, "specforge")
    with pytest.raises(CheckpointError, match="names no mask token") as caught:
        read_head(tmp_path, num_target_layers=LAYERS)
    assert "--mask-token-id" in caught.value.hint


def test_later_layers_with_tensorrt_llms_name_for_their_norm_are_read(tmp_path: Path) -> None:
    save_drafter(tmp_path, mask_token_id=None)
    respell(tmp_path, "nvidia")
    norm = np.full(64, 3.0, np.float32)
    edit_tensors(tmp_path, layers__1__input_layernorm__weight=None, layers__1__hidden_norm__weight=norm)
    np.testing.assert_array_equal(read_head(tmp_path).weights.load("layers.1.input_norm"), norm)


def test_a_null_draft_vocabulary_means_the_targets(tmp_path: Path) -> None:
    save_drafter(tmp_path, mask_token_id=None)
    respell(tmp_path, "nvidia")
    edit_config(tmp_path, draft_vocab_size=None)
    assert read_head(tmp_path).config.draft_vocab_size == 300


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "dflash": ({"architectures": ["DFlashDraftModel"], "dflash_config": {"mask_token_id": 1}}, "is a DFlash head"),
    "unnamed_dflash": ({"architectures": ["Qwen3Model"], "dflash_config": {"mask_token_id": 1}}, "is a DFlash head"),
    "domino": ({"dflash_config": {"projector_type": "domino"}}, "is a Domino head"),
    "dspark": ({"architectures": ["DSparkDraftModel"], "dflash_config": {"mask_token_id": 1}}, "is a DSpark head"),
    "medusa": ({"medusa_num_heads": 4}, "is a Medusa head"),
    "speculators_dflash": ({"speculators_model_type": "dflash"}, "is a DFlash head"),
    "speculators_eagle": ({"speculators_model_type": "eagle"}, "is a EAGLE-1 head"),
    "speculators_unknown": ({"speculators_model_type": "mlp"}, "is a `mlp` head"),
}


@pytest.mark.parametrize(("changes", "message"), OTHERS.values(), ids=OTHERS.keys())
def test_a_head_of_another_method_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    save_drafter(tmp_path)
    edit_config(tmp_path, **changes)
    with pytest.raises(CheckpointError, match=message.replace("a EAGLE", "an EAGLE")):
        read_head(tmp_path)


TENSORS: dict[str, tuple[dict[str, tuple[int, ...]], str]] = {
    "eagle_1": ({"fc.weight": (8, 16), "layers.0.self_attn.q_proj.weight": (8, 8)}, "is an EAGLE-1 head"),
    "dflash": ({"fc.weight": (8, 40), "hidden_norm.weight": (8,)}, "is a DFlash head"),
    "medusa": ({"0.0.linear.weight": (8, 8), "0.1.weight": (30, 8)}, "is a Medusa head"),
    "medusa_on_eagle": (
        {"fc.weight": (8, 24), "parallel_draft_heads.0.medusa_layers.0.linear.weight": (8, 8)},
        "is an EAGLE-3 with Medusa-style parallel heads",
    ),
}


@pytest.mark.parametrize(("shapes", "message"), TENSORS.values(), ids=TENSORS.keys())
def test_tensors_alone_tell_the_method(tmp_path: Path, shapes: dict[str, tuple[int, ...]], message: str) -> None:
    from safetensors.numpy import save_file

    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    save_file({name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        read_head(tmp_path)
