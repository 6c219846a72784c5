"""Speculative greedy decoding gives the target's own answer, token for token, on a trained pair."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from peagle_trt.bench.prompt_sets import read_prompts
from peagle_trt.decode.request import DraftTokens, SamplingSettings
from peagle_trt.decode.session import Generation, LoadedBuild, generate

NUM_PROMPTS = 24
MAX_TOKENS = 96
TARGET = Path(__file__).parents[3] / "builder" / "peagle_trt" / "catalog" / "tiny" / "target"


def answers(loaded: LoadedBuild, draft_tokens: DraftTokens, batch: int, **settings: Any) -> list[Generation]:
    prompts = read_prompts("gsm8k", NUM_PROMPTS).prompts
    # Cut at different lengths, so that a batch is never in step.
    requests = [
        replace(
            loaded.request(f"Question: {prompt}"[: 40 + 13 * index], max_tokens=MAX_TOKENS),
            draft_tokens=draft_tokens,
            **settings,
        )
        for index, prompt in enumerate(prompts)
    ]
    return [
        answer
        for first in range(0, len(requests), batch)
        for answer in generate(loaded, requests[first : first + batch])
    ]


@pytest.fixture(scope="module")
def alone(loaded: LoadedBuild) -> tuple[tuple[int, ...], ...]:
    return tuple(answer.token_ids for answer in answers(loaded, 0, 1))


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("draft_tokens", [1, 3, 5, 7])
def test_every_token_is_the_targets(
    loaded: LoadedBuild, alone: tuple[tuple[int, ...], ...], draft_tokens: int, batch: int
) -> None:
    found = answers(loaded, draft_tokens, batch)
    assert sum(len(answer.token_ids) for answer in found) >= 2000
    for answer, expected in zip(found, alone, strict=True):
        assert answer.token_ids == expected


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("draft_tokens", [2, 5, "auto"])
def test_every_token_is_the_targets_with_copies_from_the_text(
    loaded: LoadedBuild, alone: tuple[tuple[int, ...], ...], draft_tokens: DraftTokens, batch: int
) -> None:
    found = answers(loaded, draft_tokens, batch, prompt_lookup=True)
    assert [answer.token_ids for answer in found] == list(alone)


def test_copies_from_the_text_are_worth_their_rows(loaded: LoadedBuild) -> None:
    steps = []
    for prompt_lookup in (False, True):
        found = answers(loaded, 5, 8, prompt_lookup=prompt_lookup)
        steps.append(sum(answer.metrics.num_verify_steps for answer in found))
        assert (sum(answer.metrics.num_looked_up_tokens for answer in found) > 0) == prompt_lookup
    assert steps[1] < steps[0]


def test_the_target_alone_is_what_transformers_generates(
    loaded: LoadedBuild, alone: tuple[tuple[int, ...], ...]
) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    prompts = read_prompts("gsm8k", 6).prompts
    for index, prompt in enumerate(prompts):
        ids = torch.tensor([loaded.tokenizer.encode(f"Question: {prompt}"[: 40 + 13 * index])])
        with torch.no_grad():
            full = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=MAX_TOKENS, do_sample=False, pad_token_id=0
            )
        expected = [token for token in full[0, ids.shape[1] :].tolist() if token not in (model.config.eos_token_id,)]
        assert list(alone[index]) == expected


def test_a_trained_drafter_is_worth_its_pass(loaded: LoadedBuild) -> None:
    # Measured when it was trained: see the drafter's README. Half of the gain over 1.0 would already mean a fault.
    found = answers(loaded, 5, 1)
    steps = sum(answer.metrics.num_verify_steps for answer in found)
    accepted = sum(answer.metrics.num_accepted_tokens for answer in found)
    assert 1 + accepted / steps > 2.0


def test_one_drafter_pass_a_step(loaded: LoadedBuild) -> None:
    for answer in answers(loaded, 5, 1):
        # One after the prompt, then one after every verify step but the last.
        assert answer.metrics.num_drafter_passes <= answer.metrics.num_verify_steps + 1


def test_penalties_apply_inside_an_accepted_run(loaded: LoadedBuild) -> None:
    settings = SamplingSettings(repetition_penalty=1.3, frequency_penalty=0.2, presence_penalty=0.1)
    plain = answers(loaded, 0, 1, sampling=settings)
    for prompt_lookup in (False, True):
        speculative = answers(loaded, 5, 8, sampling=settings, prompt_lookup=prompt_lookup)
        assert [answer.token_ids for answer in speculative] == [answer.token_ids for answer in plain]
