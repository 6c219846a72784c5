"""Whole generations through dense passes, equal token for token to the engine that takes sequences one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from peagle_trt.build_folder import read_manifest
from peagle_trt.decode.session import LoadedBuild
from peagle_trt.engine.batched_engine import BatchedEngine
from peagle_trt.engine.proof import open_proof
from peagle_trt.engine.protocol import TargetRows, host_rows
from tests.support.generations import generate_all, make_requests, penalised

# More requests than slots, prompts around the sizes at which passes change.
LENGTHS = (1, 17, 18, 200, 3, 40, 5, 90, 16, 2, 130)


@pytest.fixture(scope="module")
def batched(tiny_build: Path) -> Iterator[BatchedEngine]:
    manifest = msgspec.structs.replace(read_manifest(tiny_build), backend="tensorrt-rtx")
    engine = open_proof(tiny_build, manifest, num_threads=1)
    yield engine
    engine.close()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_tokens_and_accepted_drafts_equal_the_other_engine(
    loaded: LoadedBuild, batched: BatchedEngine, temperature: float
) -> None:
    requests = make_requests(batched, LENGTHS, temperature=temperature)
    assert generate_all(batched, requests) == generate_all(loaded.engine, requests)


def test_penalties_need_the_logits_and_get_them(loaded: LoadedBuild, batched: BatchedEngine) -> None:
    requests = [penalised(request) for request in make_requests(batched, LENGTHS)]
    found = generate_all(batched, requests)
    assert found == generate_all(loaded.engine, requests)
    assert found != generate_all(batched, make_requests(batched, LENGTHS))


def test_a_prompt_longer_than_a_pass_equals_the_other_engine(loaded: LoadedBuild, batched: BatchedEngine) -> None:
    ids = np.random.default_rng(1).integers(0, batched.target.vocab_size, 540).astype(np.int32)
    item = TargetRows(slot=2, token_ids=ids, start_position=0, num_logit_rows=40)
    (found,), (expected,) = batched.run_target([item]), loaded.engine.run_target([item])
    np.testing.assert_allclose(found.logits, expected.logits, atol=1e-3, rtol=0)
    np.testing.assert_allclose(host_rows(found.hidden), host_rows(expected.hidden), atol=1e-3, rtol=1e-3)
    assert found.greedy_token_ids is not None
    assert found.greedy_token_ids.tolist() == expected.logits.argmax(axis=1).tolist()
