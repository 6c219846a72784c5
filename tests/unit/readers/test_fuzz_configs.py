"""Forged configurations of targets and heads: every key removed, and replaced by anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle_trt.readers import read_drafter, read_target
from tests.support.checkpoints import save_byte_tokenizer
from tests.support.fuzzing import EDGES, JSON_VALUES, bounded, examples, fuzzed, key_mutations, refuses_or_reads
from tests.support.models import save_drafter, save_target

ROPE_KEYS = ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor")
TARGET_KEYS = (
    *ROPE_KEYS,
    "quantization_config",
    "sliding_window",
    "use_sliding_window",
    "layer_types",
    "attention_bias",
    "logit_scale",
    "hidden_act",
)
HEAD_KEYS = (
    *ROPE_KEYS,
    "num_depths",
    "fc_norm",
    "norm_before_fc",
    "norm_before_residual",
    "pard_token",
    "ptd_token_id",
    "eagle_aux_hidden_state_layer_ids",
    "target_hidden_size",
    "speculators_model_type",
    "transformer_layer_config",
)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz") / "target"
    save_target(folder)
    save_byte_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz") / "head"
    save_drafter(folder)
    return folder


def try_documents(
    path: Path, documents: st.SearchStrategy[dict[str, Any]], read: Callable[[], object], num_examples: int
) -> None:
    original = path.read_bytes() if path.exists() else None

    @fuzzed(num_examples)
    @given(documents)
    def try_document(document: dict[str, Any]) -> None:
        path.write_text(json.dumps(document))
        refuses_or_reads(read, path.parent)

    try:
        with bounded():
            try_document()
    finally:
        path.unlink()
        if original is not None:
            path.write_bytes(original)


@examples(150)
def test_target_configs(num_examples: int, target: Path) -> None:
    path = target / "config.json"
    documents = key_mutations(json.loads(path.read_text()), TARGET_KEYS)
    try_documents(path, documents, lambda: read_target(target), num_examples)


@examples(200)
def test_head_configs(num_examples: int, head: Path) -> None:
    path = head / "config.json"
    documents = key_mutations(json.loads(path.read_text()), HEAD_KEYS)
    try_documents(path, documents, lambda: read_drafter(head), num_examples)


@examples(100)
def test_what_a_head_says_of_its_features(num_examples: int, head: Path) -> None:
    path = head / "config.json"
    config = json.loads(path.read_text())
    sections = key_mutations(config["eagle_config"], ("norm_before_fc", "fc_norm"))
    documents = sections.map(lambda section: config | {"eagle_config": section})
    try_documents(path, documents, lambda: read_drafter(head), num_examples)


NUMBERS = st.one_of(st.sampled_from([*EDGES, 0.5, 1e-300, 1e300, float("nan"), float("inf")]), st.floats())
ROTARY_RULES = st.fixed_dictionaries(
    {"rope_type": st.one_of(st.sampled_from(["default", "linear", "llama3", "yarn", "longrope"]), JSON_VALUES)},
    optional={
        **dict.fromkeys(
            (
                "factor",
                "low_freq_factor",
                "high_freq_factor",
                "original_max_position_embeddings",
                "beta_fast",
                "beta_slow",
                "attention_factor",
                "rope_theta",
                "partial_rotary_factor",
            ),
            st.one_of(NUMBERS, st.sampled_from([1, 2, 8.0, 64, 1.0]), JSON_VALUES),
        ),
        "truncate": JSON_VALUES,
        "type": JSON_VALUES,
    },
)


@examples(200)
def test_rotary_rules(num_examples: int, head: Path) -> None:
    path = head / "config.json"
    config = json.loads(path.read_text())
    key = st.sampled_from(["rope_scaling", "rope_parameters"])
    documents = st.builds(lambda key, rule: config | {key: rule}, key, ROTARY_RULES)
    try_documents(path, documents, lambda: read_drafter(head), num_examples)


TOKEN = st.one_of(JSON_VALUES, st.fixed_dictionaries({"content": JSON_VALUES}))
TEMPLATE = st.lists(st.fixed_dictionaries({}, optional={"name": JSON_VALUES, "template": JSON_VALUES}), max_size=3)
TEXT_SETTINGS = {
    "generation_config.json": st.fixed_dictionaries({}, optional={"eos_token_id": JSON_VALUES, "x": JSON_VALUES}),
    "tokenizer_config.json": st.fixed_dictionaries(
        {},
        optional={"bos_token": TOKEN, "eos_token": TOKEN, "chat_template": st.one_of(TEMPLATE, JSON_VALUES)},
    ),
}


@pytest.mark.parametrize("name", TEXT_SETTINGS)
@examples(100)
def test_text_settings(num_examples: int, name: str, target: Path) -> None:
    try_documents(target / name, TEXT_SETTINGS[name], lambda: read_target(target), num_examples)
