"""Thousands of steps of random schedules: what the drafter has read is what the loop's drafter has read, every time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from peagle_trt.decode.loop import DecodeLoop
from peagle_trt.decode.request import GenerationRequest
from peagle_trt.trtllm.runtime.one_engine import OneEngine
from peagle_trt.trtllm.served_settings import ServedSettings
from tests.support.fake_trtllm import installed
from tests.support.markov_engine import VOCABULARY
from tests.support.prefix_engine import PrefixEngine, PrefixHead
from tests.support.trtllm_executor import Executor, Running

NUM_SCHEDULES, MAX_BATCH = 60, 4


def loop_steps(seed: int, requests: list[Running], draft_tokens: int) -> dict[str, list[list[int]]]:
    engine = PrefixEngine(seed=seed, max_sequence_length=160, max_batch_size=MAX_BATCH, draft_tokens=draft_tokens)
    loop = DecodeLoop(engine, None)
    for request in requests:
        loop.submit(
            GenerationRequest(
                request_id=str(request.request_id),
                prompt_ids=tuple(request.prompt),
                max_tokens=request.max_tokens,
                draft_tokens=draft_tokens,
            )
        )
    steps: dict[str, list[list[int]]] = {str(request.request_id): [] for request in requests}
    while loop.has_work:
        for chunk in loop.step():
            if chunk.token_ids:
                steps[chunk.request_id].append(list(chunk.token_ids))
    return steps


def make_executor(release: str, seed: int, rng: np.random.Generator, draft_tokens: int) -> Executor:
    """The real worker and metadata over a head of tables."""
    import importlib

    engine = PrefixEngine(seed=seed, max_sequence_length=160, max_batch_size=MAX_BATCH, draft_tokens=draft_tokens)
    limits = ServedSettings(draft_tokens=draft_tokens, max_batch_size=MAX_BATCH, max_sequence_length=160)
    served = OneEngine(limits)
    served.attach(PrefixHead(engine))  # type: ignore[arg-type]
    name = f"peagle_trt.trtllm.adapters.worker_{release.replace('.', '_')[:3]}"
    config = SimpleNamespace(max_draft_len=draft_tokens, eagle3_layers_to_capture=[0])
    worker: Any = importlib.import_module(name).PEagleWorker(config, None, served)
    from peagle_trt.trtllm.adapters import parts

    parts.follow_steps()
    parts._constructed[:] = [served]
    model = SimpleNamespace(
        spec_worker=worker, draft_model=SimpleNamespace(), model_config=SimpleNamespace(spec_config=config)
    )
    return Executor(
        model,
        engine,
        draft_tokens=draft_tokens,
        max_batch_size=MAX_BATCH,
        chunk=int(rng.integers(2, 24)),
        overlaps=bool(rng.integers(2)),
        graph_sizes=((), (4,), (1, 2, 3, 4))[int(rng.integers(3))],
        rng=rng,
    )


@pytest.mark.parametrize("release", ["1.2.1", "1.4"])
@pytest.mark.parametrize("first_seed", [0, NUM_SCHEDULES])
def test_random_schedules_accept_what_the_loop_accepts(release: str, first_seed: int) -> None:
    compare_schedules(release, range(first_seed, first_seed + NUM_SCHEDULES))


@pytest.mark.slow
@pytest.mark.parametrize("release", ["1.2.1", "1.4"])
def test_a_thousand_more_schedules(release: str) -> None:
    compare_schedules(release, range(10_000, 11_000))


def compare_schedules(release: str, seeds: range) -> None:
    num_steps, num_accepted = 0, 0
    with installed(release), torch.inference_mode():
        for seed in seeds:
            rng = np.random.default_rng(seed)
            draft_tokens = int(rng.integers(1, 8))
            requests = [
                Running(
                    request_id=1000 * seed + index,
                    prompt=rng.integers(0, VOCABULARY, int(rng.integers(1, 40))).tolist(),
                    max_tokens=int(rng.integers(1, 40)),
                )
                for index in range(int(rng.integers(1, 9)))
            ]
            expected = loop_steps(seed, requests, draft_tokens)
            make_executor(release, seed, rng, draft_tokens).run(requests)
            for request in requests:
                steps = expected[str(request.request_id)]
                assert request.answer[: request.max_tokens] == [token for step in steps for token in step], seed
                # The loop drafts less where an answer is about to end.
                kept = [len(step) for step in steps[:-2]]
                assert request.steps[: len(kept)] == kept, seed
                num_steps, num_accepted = num_steps + len(kept), num_accepted + sum(kept) - len(kept)
    # A schedule that drafted nothing would prove nothing.
    assert num_steps > 20 * len(seeds)
    assert num_accepted > num_steps / 2
