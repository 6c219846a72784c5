"""Targets with experts: both configurations, and every refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from peagle_trt.errors import CheckpointError
from peagle_trt.readers import read_target
from peagle_trt.spec import ExpertsConfig
from peagle_trt.spec.names import target_shapes
from tests.support.checkpoints import copy_folder, edit_config, edit_tensors
from tests.support.models import save_target

SMALL: dict[str, Any] = {"num_hidden_layers": 2}


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt_oss")
    save_target(folder, "GptOssForCausalLM", **SMALL)
    return folder


@pytest.fixture(scope="module")
def qwen3_moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3_moe")
    save_target(folder, "Qwen3MoeForCausalLM", **SMALL)
    return folder


def test_gpt_oss_is_read(gpt_oss: Path) -> None:
    target = read_target(gpt_oss)
    config = target.config
    assert (config.attention_windows, config.has_sinks, config.rope.truncates_ramp) == ((7, 0), True, False)
    assert (config.has_qkv_bias, config.has_output_bias, config.head_dim) == (True, True, 32)
    assert config.experts == ExpertsConfig(
        num_experts=8,
        experts_per_token=3,
        intermediate_size=96,
        activation="clamped_swiglu",
        limit=1.5,
        has_router_bias=True,
        has_expert_bias=True,
    )
    assert {name: lazy.shape for name, lazy in target.weights.items()} == target_shapes(config)
    stored = load_file(gpt_oss / "model.safetensors")
    experts = stored["model.layers.1.mlp.experts.gate_up_proj"].swapaxes(1, 2)
    np.testing.assert_array_equal(target.weights.load("layers.1.experts_gate_up_proj"), experts)
    np.testing.assert_array_equal(target.weights.load("layers.1.sinks"), stored["model.layers.1.self_attn.sinks"])


def test_gate_and_up_of_qwen_take_turns(qwen3_moe: Path) -> None:
    target = read_target(qwen3_moe)
    stored = load_file(qwen3_moe / "model.safetensors")
    found = target.weights.load("layers.1.experts_gate_up_proj")
    for expert in range(16):
        for row, part in enumerate(("gate", "up")):
            expected = stored[f"model.layers.1.mlp.experts.{expert}.{part}_proj.weight"]
            np.testing.assert_array_equal(found[expert, row::2], expected)
    assert {name: lazy.shape for name, lazy in target.weights.items()} == target_shapes(target.config)


def test_shares_are_not_normalised_unless_qwen_says_so(qwen3_moe: Path, tmp_path: Path) -> None:
    folder = copy_folder(qwen3_moe, tmp_path / "target")
    edit_config(folder, norm_topk_prob=None)
    experts = read_target(folder).config.experts
    assert experts is not None
    assert not experts.normalizes_shares


def test_published_files_say_the_number_of_experts_otherwise_than_transformers(qwen3_moe: Path, tmp_path: Path) -> None:
    folder = copy_folder(qwen3_moe, tmp_path / "target")
    edit_config(folder, num_local_experts=None, num_experts=16)
    assert read_target(folder).config == read_target(qwen3_moe).config


def test_layers_of_gpt_oss_take_turns_where_their_kinds_are_not_said(gpt_oss: Path, tmp_path: Path) -> None:
    folder = copy_folder(gpt_oss, tmp_path / "target")
    edit_config(folder, layer_types=None)
    assert read_target(folder).config.attention_windows == (7, 0)


def test_wavelengths_of_gpt_oss_have_a_base_of_their_own(gpt_oss: Path, tmp_path: Path) -> None:
    folder = copy_folder(gpt_oss, tmp_path / "target")
    yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "truncate": False}
    edit_config(folder, rope_parameters=None, rope_scaling=yarn)
    assert read_target(folder).config.rope.theta == 150000.0


GPT_OSS: dict[str, tuple[dict[str, Any], str]] = {
    "too_many_chosen": ({"num_experts_per_tok": 9}, "`num_experts_per_tok` must be a whole number from 1 to 8"),
    "said_twice": ({"experts_per_token": 4}, "`experts_per_token` must be equal to `num_experts_per_tok`, 3"),
    "counted_twice": ({"num_experts": 4}, "`num_experts` must be equal to `num_local_experts`, 8"),
    "limit": ({"swiglu_limit": -1.0}, "`swiglu_limit` must be a number above 0"),
    "slope": ({"swiglu_alpha": 0}, "`swiglu_alpha` must be a number above 0"),
    "kinds": ({"layer_types": ["full_attention"]}, "`layer_types` must be `full_attention` or `sliding_attention` for"),
    "kind": ({"layer_types": ["full_attention", "chunked_attention"]}, "`layer_types` must be `full_attention` or"),
    "no_window": ({"sliding_window": None}, "`sliding_window` is missing"),
    "no_rope": ({"rope_parameters": None}, "`rope_parameters` or `rope_scaling` is missing"),
    "no_experts": ({"num_local_experts": None}, "`num_local_experts` is missing"),
    "other_width": ({"intermediate_size": 64}, r"gate_up_proj` has the wrong shape: expected \[8, 64, 128\]"),
    "no_bias": ({"attention_bias": False}, "tensor.s. that its configuration has no place for"),
}


@pytest.mark.parametrize(("changes", "message"), GPT_OSS.values(), ids=GPT_OSS.keys())
def test_a_gpt_oss_that_cannot_be_honoured_is_refused(
    gpt_oss: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    folder = copy_folder(gpt_oss, tmp_path / "target")
    edit_config(folder, **changes)
    with pytest.raises(CheckpointError, match=message):
        read_target(folder)


QWEN3_MOE: dict[str, tuple[dict[str, Any], str]] = {
    "sparse_step": ({"decoder_sparse_step": 2}, "`decoder_sparse_step` must be a whole number from 1 to 1; found `2`"),
    "dense_layers": ({"mlp_only_layers": [0]}, "`mlp_only_layers` must be empty"),
    "shared_expert": ({"shared_expert_intermediate_size": 64}, "`shared_expert_intermediate_size` must be"),
    "width": ({"moe_intermediate_size": None}, "`moe_intermediate_size` is missing"),
    "other_count": ({"num_local_experts": 15}, r"mlp.gate.weight` has the wrong shape: expected \[15, 64\]"),
}


@pytest.mark.parametrize(("changes", "message"), QWEN3_MOE.values(), ids=QWEN3_MOE.keys())
def test_a_qwen3_moe_that_cannot_be_honoured_is_refused(
    qwen3_moe: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    folder = copy_folder(qwen3_moe, tmp_path / "target")
    edit_config(folder, **changes)
    with pytest.raises(CheckpointError, match=message):
        read_target(folder)


def test_a_missing_sink_is_named(gpt_oss: Path, tmp_path: Path) -> None:
    folder = copy_folder(gpt_oss, tmp_path / "target")
    edit_tensors(folder, model__layers__1__self_attn__sinks=None)
    with pytest.raises(CheckpointError, match=r"lacks 1 of .*`model\.layers\.1\.self_attn\.sinks` \[4\]"):
        read_target(folder)


def test_a_missing_expert_is_named(qwen3_moe: Path, tmp_path: Path) -> None:
    folder = copy_folder(qwen3_moe, tmp_path / "target")
    edit_tensors(folder, model__layers__1__mlp__experts__7__up_proj__weight=None)
    with pytest.raises(CheckpointError, match=r"lacks 1 of .*experts\.7\.up_proj\.weight` \[32, 64\]"):
        read_target(folder)
