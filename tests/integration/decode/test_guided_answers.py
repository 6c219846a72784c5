"""Guided answers of a trained pair: they follow the grammar, and drafts change nothing but the number of steps."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from peagle_trt.bench.prompt_sets import read_prompts
from peagle_trt.decode.guidance import GuideCompiler, GuideSettings, TokenGuide
from peagle_trt.decode.request import SamplingSettings
from peagle_trt.decode.session import Generation, LoadedBuild, generate

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "steps": {"type": "array", "items": {"type": "string", "maxLength": 20}, "minItems": 1, "maxItems": 2},
        "answer": {"type": "integer", "minimum": 0, "maximum": 9999},
        "unit": {"enum": ["dollars", "apples", "hours"]},
    },
    "required": ["steps", "answer", "unit"],
    "additionalProperties": False,
}
SAMPLED = SamplingSettings(temperature=1.2, seed=3)


@pytest.fixture(scope="module")
def guide(loaded: LoadedBuild) -> TokenGuide:
    compiler = GuideCompiler(loaded.tokenizer, loaded.manifest.target.vocab_size, loaded.manifest.target.eos_token_ids)
    return compiler.compile(GuideSettings(kind="json_schema", text=json.dumps(SCHEMA)), field="F")


def answers(loaded: LoadedBuild, **settings: Any) -> list[Generation]:
    prompts = read_prompts("gsm8k", 8).prompts
    requests = [loaded.request(f"Question: {prompt}\nAnswer: ", max_tokens=200) for prompt in prompts]
    return generate(loaded, [replace(request, **settings) for request in requests])


@pytest.mark.parametrize("draft_tokens", [0, 5])
@pytest.mark.parametrize("sampling", [SamplingSettings(), SAMPLED], ids=["greedy", "sampled"])
def test_every_answer_is_what_the_schema_says(
    loaded: LoadedBuild, guide: TokenGuide, sampling: SamplingSettings, draft_tokens: int
) -> None:
    for answer in answers(loaded, guide=guide, sampling=sampling, draft_tokens=draft_tokens):
        assert answer.finish_reason == "stop"
        found = json.loads(answer.text)
        assert list(found) == SCHEMA["required"]
        assert 1 <= len(found["steps"]) <= 2
        assert all(len(step) <= 20 for step in found["steps"])
        assert 0 <= found["answer"] <= 9999
        assert found["unit"] in SCHEMA["properties"]["unit"]["enum"]


def test_drafts_change_nothing_but_the_number_of_steps(loaded: LoadedBuild, guide: TokenGuide) -> None:
    fast, plain = (answers(loaded, guide=guide, draft_tokens=count) for count in (5, 0))
    assert [answer.token_ids for answer in fast] == [answer.token_ids for answer in plain]
    steps = sum(answer.metrics.num_verify_steps for answer in fast)
    assert steps < 0.6 * sum(answer.metrics.num_output_tokens for answer in plain)


def test_drafts_hold_their_own_where_the_grammar_and_not_the_head_knows(loaded: LoadedBuild, guide: TokenGuide) -> None:
    # Unmasked, a head that was never trained on JSON is right about the first draft of a step and hardly any later.
    found = answers(loaded, guide=guide, draft_tokens=5)
    kept = [sum(counts) for counts in zip(*(answer.metrics.accepted_by_position for answer in found), strict=True)]
    assert kept[1] > 0.4 * kept[0]
