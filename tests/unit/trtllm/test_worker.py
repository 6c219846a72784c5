"""Whole generations through the worker, inside a stand-in for TensorRT-LLM, against this project's own loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peagle_trt import catalog
from peagle_trt.decode.loop import DecodeLoop
from peagle_trt.decode.request import GenerationRequest
from peagle_trt.decode.session import LoadedBuild
from peagle_trt.readers import read_drafter, read_target
from tests.support.fake_trtllm import installed
from tests.support.models import BuiltPair, open_pair, save_drafter, save_target
from tests.support.trtllm_executor import Executor, Running
from tests.support.trtllm_models import load_pair, model_config, write_served_head

ARCHITECTURES = ("LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "GptOssForCausalLM")
TEXTS = (
    "Question: Tom has 3 apples and buys 5 more. How many apples does he have?\nAnswer:",
    "Question: A box holds 12 eggs.",
    "Question: Mary reads 10 pages a day for a week. How many pages does she read in all?\nAnswer: She",
    "Q",
)
PROMPTS = (3, 17, 1, 40, 9, 26)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[BuiltPair, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    save_target(folder / "target", request.param)
    save_drafter(folder / "drafter", carries=("embed_tokens", "lm_head"))
    # The drafts must be those of the loop, so both run in float32.
    built = open_pair(folder / "target", folder / "drafter", folder / "build")
    return built, write_served_head(folder / "target", folder / "drafter", folder / "served")


def loop_answers(pair: BuiltPair, prompts: list[list[int]], draft_tokens: int, lengths: list[int]) -> dict[str, Any]:
    """Tokens of every step of every request, from the loop."""
    loop = DecodeLoop(pair.engine, None)
    for index, prompt in enumerate(prompts):
        loop.submit(
            GenerationRequest(
                request_id=str(index), prompt_ids=tuple(prompt), max_tokens=lengths[index], draft_tokens=draft_tokens
            )
        )
    steps: dict[str, list[tuple[int, ...]]] = {}
    while loop.has_work:
        for chunk in loop.step():
            if chunk.token_ids:
                steps.setdefault(chunk.request_id, []).append(tuple(chunk.token_ids))
    return steps


def run_worker(
    pair: BuiltPair, head_path: Path, prompts: list[list[int]], lengths: list[int], draft_tokens: int, **options: Any
) -> list[Running]:
    registry = options.pop("registry")
    target = pair.engine.target
    model = registry[pair.target.config.architecture](model_config(target, head_path, draft_tokens=draft_tokens))
    load_pair(model, pair.target, head_path)
    requests = [
        Running(request_id=100 + index, prompt=prompt, max_tokens=lengths[index])
        for index, prompt in enumerate(prompts)
    ]
    executor = Executor(
        model, pair.engine, draft_tokens=draft_tokens, max_batch_size=4, rng=np.random.default_rng(3), **options
    )
    with torch.inference_mode():
        executor.run(requests)
    return requests


@pytest.mark.parametrize("release", ["1.2.1", "1.4"])
@pytest.mark.parametrize(
    ("overlaps", "chunk", "graph_sizes", "draft_tokens"),
    [(False, 64, (), 3), (True, 11, (), 5), (True, 16, (1, 2, 4), 1)],
)
def test_the_worker_drafts_what_the_loop_drafts(
    pair: tuple[BuiltPair, Path],
    release: str,
    overlaps: bool,
    chunk: int,
    graph_sizes: tuple[int, ...],
    draft_tokens: int,
) -> None:
    built, head_path = pair
    rng = np.random.default_rng(11)
    prompts = [rng.integers(3, 290, length).tolist() for length in PROMPTS]
    lengths = [20 + 3 * index for index in range(len(PROMPTS))]
    expected = loop_answers(built, prompts, draft_tokens, lengths)
    with installed(release) as registry:
        from peagle_trt.trtllm.plugin import install

        install()
        found = run_worker(
            built,
            head_path,
            prompts,
            lengths,
            draft_tokens,
            registry=registry,
            overlaps=overlaps,
            chunk=chunk,
            graph_sizes=graph_sizes,
        )
    for index, request in enumerate(found):
        steps = expected[str(index)]
        tokens = [token for step in steps for token in step]
        assert request.answer[: lengths[index]] == tokens
        # The loop drafts less where an answer ends, so the last steps may be cut differently.
        assert request.steps[: len(steps) - 2] == [len(step) for step in steps[:-2]]


@pytest.mark.parametrize("release", ["1.2.1", "1.4"])
@pytest.mark.parametrize(("overlaps", "chunk", "graph_sizes"), [(True, 9, (1, 2, 4)), (False, 48, ())])
def test_a_trained_head_is_accepted_as_often_as_in_the_loop(
    loaded: LoadedBuild, tmp_path: Path, release: str, overlaps: bool, chunk: int, graph_sizes: tuple[int, ...]
) -> None:
    entry = catalog.find_entry("tiny")
    target_path, drafter_path = catalog.target_path(entry), catalog.drafter_path(entry)
    head_path = write_served_head(target_path, drafter_path, tmp_path / "served")
    pair = BuiltPair(target=read_target(target_path), drafter=read_drafter(drafter_path), engine=loaded.engine)
    prompts = [loaded.tokenizer.encode(text) for text in TEXTS]
    expected = loop_answers(pair, prompts, 4, [40] * 4)
    with installed(release) as registry:
        from peagle_trt.trtllm.plugin import install

        install()
        options = {"overlaps": overlaps, "chunk": chunk, "graph_sizes": graph_sizes}
        found = run_worker(pair, head_path, prompts, [40] * 4, 4, registry=registry, **options)
    for index, request in enumerate(found):
        steps = expected[str(index)]
        assert request.answer[:40] == [token for step in steps for token in step]
        assert request.steps[: len(steps) - 2] == [len(step) for step in steps[:-2]]
    assert max(count for request in found for count in request.steps) >= 4
