"""Small heads and invented sequences, built without any checkpoint."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from peagle_trt.spec import DrafterConfig
from peagle_trt.spec.rope import RopeConfig
from peagle_trt.train.acceptance import FrozenTables, freeze_tables
from peagle_trt.train.features import TrainingSequence
from peagle_trt.train.generate import Answer, Prompt

HIDDEN, VOCABULARY = 32, 96


@pytest.fixture
def config() -> DrafterConfig:
    return DrafterConfig(
        dialect="vllm",
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        rms_norm_eps=1e-5,
        rope=RopeConfig(theta=10000.0),
        max_positions=128,
        target_hidden_size=HIDDEN,
        aux_layer_ids=(1, 2, 3),
        vocab_size=VOCABULARY,
        draft_vocab_size=VOCABULARY,
        mask_token_id=2,
        num_depths=5,
    )


def make_sequence(seed: int, length: int = 24, prompt_length: int = 5) -> TrainingSequence:
    generator = torch.Generator().manual_seed(seed)
    return TrainingSequence(
        token_ids=torch.randint(3, VOCABULARY, (length,), generator=generator, dtype=torch.int32),
        prompt_length=prompt_length,
        auxiliary_NA=torch.randn(length - 1, 3 * HIDDEN, generator=generator).half(),
        normed_NH=torch.randn(length - 1, HIDDEN, generator=generator).half(),
    )


@pytest.fixture
def new_sequence() -> Callable[[int, int, int], TrainingSequence]:
    """Makes a sequence from a seed, a length and the length of its prompt."""
    return make_sequence


@pytest.fixture
def new_answer() -> Callable[[str], Answer]:
    """Makes a short answer with the given identifier."""

    def make(identifier: str) -> Answer:
        prompt = Prompt(identifier=identifier, source="test", token_ids=(3, 4), max_new_tokens=3)
        return Answer(
            prompt=prompt,
            token_ids=(3, 4, 5, 6),
            auxiliary_NA=torch.ones(3, 6).half(),
            normed_NH=torch.ones(3, 2).half(),
        )

    return make


@pytest.fixture
def tables(config: DrafterConfig) -> FrozenTables:
    torch.manual_seed(1)
    embeddings = torch.randn(config.vocab_size, config.hidden_size)
    return freeze_tables(embeddings, embeddings * 0.3, np.arange(config.vocab_size), torch.float32)


@pytest.fixture
def sequences() -> list[TrainingSequence]:
    return [make_sequence(seed, length=20 + seed) for seed in range(12)]


@pytest.fixture
def generator() -> np.random.Generator:
    return np.random.default_rng(7)
