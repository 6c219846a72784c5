"""A head that was written in a dialect and read again is the same head, bit for bit; or it was refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file

from peagle_trt.errors import CheckpointError
from peagle_trt.readers import DrafterCheckpoint, TargetCheckpoint, draft_to_target_ids, read_head
from peagle_trt.readers.safetensors_file import map_bytes
from peagle_trt.spec import DrafterConfig
from peagle_trt.writers import WRITERS, convert_head
from tests.support.heads import respell
from tests.support.models import save_drafter
from tests.unit.writers.conftest import NUM_LAYERS


def aux(*layers: int) -> dict[str, Any]:
    return {"eagle_config": {"eagle_aux_hidden_state_layer_ids": list(layers)}}


YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 64, "truncate": False}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one-layer": {"num_hidden_layers": 1},
    "four-layers": {"num_hidden_layers": 4},
    "reduced": {"draft_vocab_size": 120},
    "reduced-own-layer": {"draft_vocab_size": 120, "carries": ("lm_head",)},
    "own-tables": {"carries": ("embed_tokens", "lm_head")},
    "narrow": {"hidden_size": 32, "carries": ("embed_tokens", "lm_head")},
    "norm-before-residual": {"norm_before_residual": True},
    "norm-before-fc": {"norm_before_fc": True},
    "fc-norm": {"fc_norm": True, "norm_output": True},
    "attention-bias": {"attention_bias": True},
    "all-biases": {"attention_bias": True, "mlp_bias": True, "carries": ("o_bias",)},
    "output-bias": {"carries": ("o_bias",)},
    "head-norms": {"model_type": "qwen3"},
    "head-norms-and-biases": {"model_type": "qwen3", "mlp_bias": True},
    "windows": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16},
    "two-states": aux(2, 9),
    "embedding-stream": aux(0, 7, 11),
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "llama3": {"rope_scaling": LLAMA3},
    "yarn": {"rope_scaling": YARN},
    "yarn-amplitude": {"rope_scaling": YARN | {"attention_factor": 1.25}},
    "sequential": {"mask_token_id": None, "num_hidden_layers": 1, "norm_output": True},
}
ADDED = ("has_own_embeddings", "has_own_lm_head", "has_output_bias")
"""What a dialect may write out that a head has from its target, or has as zeros."""
REFUSED: dict[str, dict[str, str]] = {
    "vllm": {
        "output-bias": "a bias of the attention's output alone",
        "head-norms-and-biases": "biases of the feed-forward block beside head norms",
    },
    "speculators": {
        "output-bias": "a bias of the attention's output alone",
        "head-norms-and-biases": "biases of the feed-forward block beside head norms",
    },
    "automodel": {
        "norm-before-residual": "`norm_before_residual`: its layers have none",
        "norm-before-fc": "`norm_before_fc`: its layers have none",
        "output-bias": "a bias of the attention's output alone",
        "head-norms": "norms of queries and keys",
        "head-norms-and-biases": "norms of queries and keys",
        "windows": "sliding windows",
        "two-states": r"the auxiliary layers \[2, 9\]: .* take the usual \[2, 7, 11\]",
        "embedding-stream": r"the auxiliary layers \[0, 7, 11\]",
    },
    "trtllm": {
        "norm-before-residual": "`norm_before_residual`",
        "output-bias": "a bias of the attention's output alone",
        "head-norms": "norms of queries and keys",
        "head-norms-and-biases": "norms of queries and keys",
        "windows": "sliding windows",
        "embedding-stream": "the embeddings' own stream, layer 0",
    },
}
HELD = [(dialect, variant) for dialect in WRITERS for variant in VARIANTS if variant not in REFUSED[dialect]]
LOST = [(dialect, variant) for dialect in WRITERS for variant in REFUSED[dialect]]


def save_variant(folder: Path, variant: str) -> DrafterCheckpoint:
    save_drafter(folder, **({"num_depths": 6, "target_hidden_size": 64} | aux(2, 7, 11) | VARIANTS[variant]))
    return read_head(folder)


def without_wording(config: DrafterConfig, like: DrafterConfig) -> DrafterConfig:
    """A configuration but for what only says how a file was written, and for what a dialect may add."""
    same = {name: getattr(like, name) for name in ("dialect", "aux_numbering", *ADDED)}
    return msgspec.structs.replace(config, **same)


def assert_same_bits(ours: DrafterCheckpoint, theirs: DrafterCheckpoint) -> None:
    for name, lazy in ours.weights.items():
        copy = theirs.weights[name]
        assert (copy.spec.dtype, copy.shape) == (lazy.spec.dtype, lazy.shape), name
        np.testing.assert_array_equal(map_bytes(copy.spec), map_bytes(lazy.spec), err_msg=name)


@pytest.mark.parametrize(("dialect", "variant"), HELD)
def test_a_head_survives(tmp_path: Path, deep_target: TargetCheckpoint, dialect: str, variant: str) -> None:
    ours = save_variant(tmp_path / "ours", variant)
    convert_head(ours, deep_target, dialect, tmp_path / "theirs")
    theirs = read_head(tmp_path / "theirs", num_target_layers=NUM_LAYERS)
    assert theirs.config.dialect == dialect
    assert without_wording(theirs.config, ours.config) == ours.config
    assert all(getattr(theirs.config, flag) >= getattr(ours.config, flag) for flag in ADDED)
    assert_same_bits(ours, theirs)
    assert_additions_are_the_targets(ours, theirs, deep_target)


def assert_additions_are_the_targets(
    ours: DrafterCheckpoint, theirs: DrafterCheckpoint, target: TargetCheckpoint
) -> None:
    expected = {
        "embed_tokens": target.weights.load("embed_tokens"),
        "lm_head": target.weights.load("lm_head")[draft_to_target_ids(ours)],
    }
    for name in theirs.weights.keys() - ours.weights.keys():
        np.testing.assert_array_equal(theirs.weights.load(name), expected.get(name, 0.0))


@pytest.mark.parametrize(("dialect", "variant"), LOST)
def test_what_a_dialect_cannot_hold_is_refused(
    tmp_path: Path, deep_target: TargetCheckpoint, dialect: str, variant: str
) -> None:
    ours = save_variant(tmp_path / "ours", variant)
    with pytest.raises(CheckpointError, match=f"the {dialect} dialect cannot hold {REFUSED[dialect][variant]}"):
        convert_head(ours, deep_target, dialect, tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()


# Settings, and what the dialect writes beside the tensors that the tests' own respelling renames.
BESIDE = {
    "speculators": {"t2d", "lm_head.weight"},
    "automodel": {"t2d", "lm_head.weight", "model.embed_tokens.weight"},
    "trtllm": {"lm_head.weight"},
}


@pytest.mark.parametrize("dialect", BESIDE)
def test_tensors_are_named_as_the_dialects_description_says(
    tmp_path: Path, deep_target: TargetCheckpoint, dialect: str
) -> None:
    ours = save_variant(tmp_path / "ours", "reduced")
    convert_head(ours, deep_target, dialect, tmp_path / "theirs")
    respell(tmp_path / "ours", dialect)
    expected, found = (load_file(tmp_path / name / "model.safetensors") for name in ("ours", "theirs"))
    assert found.keys() == expected.keys() | BESIDE[dialect]
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
    assert found["mask_hidden"].shape == (1, 1, 192)


@pytest.mark.parametrize("dialect", ["amazon", "automodel", "specforge", "trtllm", "nvidia", "angelslim", "safeailab"])
def test_every_dialect_that_is_read_can_become_vllms(
    tmp_path: Path, deep_target: TargetCheckpoint, dialect: str
) -> None:
    settings = aux(2, 7, 11)
    if dialect in ("nvidia", "angelslim", "safeailab"):
        settings["mask_token_id"] = None
    save_drafter(tmp_path / "ours", **settings)
    expected = read_head(tmp_path / "ours")
    save_drafter(tmp_path / "theirs", **settings)
    respell(tmp_path / "theirs", dialect)
    mask = 299 if dialect == "specforge" else None
    theirs = read_head(tmp_path / "theirs", num_target_layers=NUM_LAYERS, mask_token_id=mask)
    convert_head(theirs, deep_target, "vllm", tmp_path / "vllm")
    converted = read_head(tmp_path / "vllm")
    assert (converted.config.aux_layer_ids, converted.config.aux_numbering) == ((2, 7, 11), "inputs")
    assert converted.config.mask_token_id == expected.config.mask_token_id
    assert_same_bits(expected, converted)
