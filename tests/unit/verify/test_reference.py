"""The numpy reference against transformers and against a torch drafter written apart from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from peagle_trt.readers import read_drafter, read_target
from peagle_trt.spec import RopeConfig
from peagle_trt.verify import checkpoint_source
from peagle_trt.verify.reference import run_drafter, run_target
from peagle_trt.verify.rotary import rotary_frequencies
from tests.support.drafter_reference import DrafterReference
from tests.support.models import HIDDEN, VOCABULARY, save_drafter, save_target

TARGETS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "tied_and_biased": ("LlamaForCausalLM", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 32}),
    "mistral": ("MistralForCausalLM", {"sliding_window": 5}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", {}),
    "qwen3_moe_windowed": ("Qwen3MoeForCausalLM", {"use_sliding_window": True, "sliding_window": 5}),
    "qwen3_moe_shares_as_they_are": ("Qwen3MoeForCausalLM", {"norm_topk_prob": False}),
    "gpt_oss": ("GptOssForCausalLM", {}),
    "gpt_oss_all_windowed": ("GptOssForCausalLM", {"layer_types": ["sliding_attention"] * 6}),
}


@pytest.mark.parametrize(("architecture", "settings"), TARGETS.values(), ids=TARGETS.keys())
def test_a_target_is_computed_as_transformers_does(tmp_path: Path, architecture: str, settings: dict[str, Any]) -> None:
    model = save_target(tmp_path, architecture, **settings).double()
    target = read_target(tmp_path)
    config = msgspec.structs.replace(target.config, aux_layer_ids=(0, 3, 5))
    token_ids = np.random.default_rng(1).integers(0, VOCABULARY, 19)
    found = run_target(config, target.weights.load, token_ids)
    with torch.no_grad():
        expected = model(torch.from_numpy(token_ids)[None], output_hidden_states=True)
    # transformers keeps its rotary tables in float32.
    np.testing.assert_allclose(found.logits, expected.logits[0].numpy(), atol=1e-5)
    streams = torch.cat([expected.hidden_states[index][0] for index in (0, 3, 5)], dim=-1)
    np.testing.assert_allclose(found.hidden, streams.numpy(), atol=1e-5)


ROPES: dict[str, tuple[RopeConfig, dict[str, Any]]] = {
    "default": (RopeConfig(theta=5e5), {}),
    "llama3": (
        RopeConfig(theta=5e5, scaling="llama3", factor=8.0, original_max_positions=512),
        {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512},
    ),
    "linear": (RopeConfig(theta=5e5, scaling="linear", factor=4.0), {"factor": 4.0}),
    "yarn": (
        RopeConfig(theta=5e5, scaling="yarn", factor=4.0, original_max_positions=512),
        {"factor": 4.0, "original_max_position_embeddings": 512},
    ),
    "yarn_gpt_oss": (
        RopeConfig(theta=5e5, scaling="yarn", factor=32.0, original_max_positions=4096, truncates_ramp=False),
        {"factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False},
    ),
}


@pytest.mark.parametrize(("rope", "foreign"), ROPES.values(), ids=ROPES.keys())
def test_frequencies_are_those_of_transformers(rope: RopeConfig, foreign: dict[str, Any]) -> None:
    head_dim = 64
    kind = "default" if rope.scaling == "none" else rope.scaling
    parameters = {"rope_type": kind, "rope_theta": 5e5, **foreign}
    config = LlamaConfig(
        hidden_size=head_dim, num_attention_heads=1, max_position_embeddings=2048, rope_parameters=parameters
    )
    found, scale = rotary_frequencies(rope, head_dim)
    if kind == "default":
        expected, expected_scale = 5e5 ** (-torch.arange(0, head_dim, 2).double() / head_dim), 1.0
    else:
        expected, expected_scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5)
    assert scale == pytest.approx(expected_scale)


HEADS: dict[str, dict[str, Any]] = {
    "plain": {},
    "normed": {"norm_before_fc": True, "norm_before_residual": True},
    "in_parts": {"fc_norm": True},
    "biased": {"attention_bias": True},
    "reduced": {"draft_vocab_size": 120},
}


@pytest.mark.parametrize("settings", HEADS.values(), ids=HEADS.keys())
@pytest.mark.parametrize("draft_tokens", [1, 4])
def test_a_drafter_is_computed_as_the_torch_reference_does(
    tmp_path: Path, settings: dict[str, Any], draft_tokens: int
) -> None:
    save_target(tmp_path / "target")
    tensors = save_drafter(tmp_path / "head", **settings)
    target, drafter = read_target(tmp_path / "target"), read_drafter(tmp_path / "head")
    source = checkpoint_source(target, drafter)
    rng = np.random.default_rng(5)
    next_ids, hidden = rng.integers(0, VOCABULARY, 7), rng.standard_normal((7, 3 * HIDDEN))
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    table, output = source.load_drafter("embed_tokens"), source.load_drafter("lm_head")
    reference = DrafterReference(tensors, config, table, output)
    expected = reference.draft_logits(next_ids, hidden, draft_tokens)
    found = run_drafter(drafter.config, source.load_drafter, next_ids, hidden, draft_tokens)
    np.testing.assert_allclose(found, expected, atol=1e-6)
