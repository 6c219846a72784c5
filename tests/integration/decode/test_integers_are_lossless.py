"""Builds of integers: speculative greedy decoding gives the same build's own plain answer, token for token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from peagle_trt import pipeline
from peagle_trt.bench.prompt_sets import read_prompts
from peagle_trt.decode.session import Generation, LoadedBuild, generate, open_build
from peagle_trt.spec import BuildSpec
from peagle_trt.verify import verify_build

CATALOG = Path(__file__).parents[3] / "builder" / "peagle_trt" / "catalog" / "tiny"
NUM_PROMPTS, MAX_TOKENS = 12, 80


@pytest.fixture(scope="module", params=["int8", "int4", "fp32-int8-drafter"])
def build_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp(request.param) / "build"
    spec = BuildSpec(
        name="tiny",
        target_path=CATALOG / "target",
        drafter_path=CATALOG / "drafter",
        tokenizer_path=CATALOG / "target",
        output_path=path,
        precision=request.param,
        max_batch_size=4,
        max_sequence_length=512,
    )
    # The stage `verify` compares with a reference over the rounded weights.
    pipeline.build(spec)
    return path


@pytest.fixture(scope="module")
def loaded(build_path: Path) -> Iterator[LoadedBuild]:
    loaded = open_build(build_path, num_threads=1)
    yield loaded
    loaded.engine.close()


def answers(loaded: LoadedBuild, draft_tokens: int, batch: int) -> list[Generation]:
    prompts = read_prompts("gsm8k", NUM_PROMPTS).prompts
    requests = [
        replace(
            loaded.request(f"Question: {prompt}"[: 40 + 13 * index], max_tokens=MAX_TOKENS), draft_tokens=draft_tokens
        )
        for index, prompt in enumerate(prompts)
    ]
    return [
        answer
        for first in range(0, len(requests), batch)
        for answer in generate(loaded, requests[first : first + batch])
    ]


def test_every_token_is_the_rounded_targets(loaded: LoadedBuild) -> None:
    alone = [answer.token_ids for answer in answers(loaded, 0, 1)]
    assert sum(map(len, alone)) > NUM_PROMPTS * MAX_TOKENS / 2
    for draft_tokens, batch in ((1, 1), (5, 1), (5, 4)):
        found = answers(loaded, draft_tokens, batch)
        assert [answer.token_ids for answer in found] == alone
    accepted, steps = (
        sum(getattr(answer.metrics, name) for answer in found) for name in ("num_accepted_tokens", "num_verify_steps")
    )
    # 2.0 is what the unrounded pair must reach.
    assert 1 + accepted / steps > 1.7


def test_a_finished_build_is_verified_from_its_own_files(build_path: Path) -> None:
    assert verify_build(build_path).max_logit_error < 4
