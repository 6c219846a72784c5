"""Log probabilities of a trained pair's answers, against transformers and with drafts against without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peagle_trt.bench.prompt_sets import read_prompts
from peagle_trt.decode.request import SamplingSettings
from peagle_trt.decode.session import Generation, LoadedBuild, generate

TARGET = Path(__file__).parents[3] / "builder" / "peagle_trt" / "catalog" / "tiny" / "target"
NUM_TOP = 5
SAMPLED = SamplingSettings(temperature=0.9, top_p=0.95, repetition_penalty=1.2, seed=11)


def answers(loaded: LoadedBuild, **settings: Any) -> list[Generation]:
    prompts = read_prompts("gsm8k", 6).prompts
    requests = [loaded.request(f"Question: {prompt}"[: 40 + 13 * i], max_tokens=64) for i, prompt in enumerate(prompts)]
    return generate(loaded, [replace(request, num_top_log_probs=NUM_TOP, **settings) for request in requests])


@pytest.mark.parametrize("sampling", [SamplingSettings(), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("draft_tokens", [0, 5])
def test_they_are_those_of_transformers(loaded: LoadedBuild, draft_tokens: int, sampling: SamplingSettings) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    found = answers(loaded, draft_tokens=draft_tokens, sampling=sampling)
    prompts = read_prompts("gsm8k", 6).prompts
    for index, (prompt, answer) in enumerate(zip(prompts, found, strict=True)):
        ids = loaded.tokenizer.encode(f"Question: {prompt}"[: 40 + 13 * index])
        with torch.no_grad():
            logits = model(torch.tensor([[*ids, *answer.token_ids]])).logits[0, len(ids) - 1 : -1]
        expected = torch.log_softmax(logits.double(), -1).numpy()
        chosen = expected[np.arange(len(answer.token_ids)), answer.token_ids]
        np.testing.assert_allclose([entry.log_prob for entry in answer.log_probs], chosen, atol=2e-4)
        best = np.sort(expected, -1)[:, ::-1][:, :NUM_TOP]
        given = [[value for _, value in entry.top] for entry in answer.log_probs]
        np.testing.assert_allclose(given, best, atol=2e-4)


def test_drafts_do_not_change_them(loaded: LoadedBuild) -> None:
    for fast, plain in zip(answers(loaded, draft_tokens=5), answers(loaded, draft_tokens=0), strict=True):
        assert fast.token_ids == plain.token_ids
        given, expected = ([entry.log_prob for entry in answer.log_probs] for answer in (fast, plain))
        np.testing.assert_allclose(given, expected, atol=1e-4)
