"""Longer answers from a store of shorter ones: what the target would have answered under the later limit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from peagle_trt import catalog
from peagle_trt.errors import UsageError
from peagle_trt.train.collect import CollectionPlan, lengthen_answers
from peagle_trt.train.features import FeatureWriter, TrainingSequence, read_all_sequences, read_index
from peagle_trt.train.generate import Prompt, answer_prompts
from peagle_trt.train.target import TorchTarget, read_torch_target

SHORT, LONG = 6, 20
PLAN = CollectionPlan(num_slots=3, max_prompt_tokens=32, max_new_tokens=LONG)


@pytest.fixture(scope="module")
def target() -> TorchTarget:
    return read_torch_target(catalog.target_path(catalog.find_entry("tiny")), torch.float32, (1, 2, 3))


def prompts(max_new_tokens: int) -> Iterator[Prompt]:
    generator = np.random.default_rng(11)
    for place in range(8):
        token_ids = tuple(generator.integers(300, 2000, 2 + place).tolist())
        yield Prompt(identifier=str(place), source="test", token_ids=token_ids, max_new_tokens=max_new_tokens)


def store(target: TorchTarget, folder: Path, max_new_tokens: int, *, keeps_states: bool = True) -> Path:
    writer = FeatureWriter(folder)
    for answer in answer_prompts(
        target,
        prompts(max_new_tokens),
        choose=target.greedy_tokens,
        num_slots=3,
        capacity=96,
        keeps_states=keeps_states,
    ):
        writer.add(answer)
    writer.flush()
    return folder


def by_name(folder: Path) -> dict[str, TrainingSequence]:
    names = [name for shard in read_index(folder) for name in shard.identifiers]
    return dict(zip(names, read_all_sequences(folder), strict=True))


@pytest.fixture(scope="module")
def expected(target: TorchTarget, tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainingSequence]:
    """Those answers under the later limit that the earlier one cuts."""
    folder = store(target, tmp_path_factory.mktemp("long"), LONG)
    cut = {
        name: sequence
        for name, sequence in by_name(folder).items()
        if len(sequence.token_ids) - sequence.prompt_length > SHORT
    }
    assert cut
    return cut


@pytest.mark.parametrize("keeps_states", [True, False])
def test_they_are_the_answers_under_the_later_limit(
    target: TorchTarget, expected: dict[str, TrainingSequence], tmp_path: Path, keeps_states: bool
) -> None:
    store(target, tmp_path / "short", SHORT, keeps_states=keeps_states)
    num_tokens = lengthen_answers(target, source=tmp_path / "short", folder=tmp_path / "long", plan=PLAN)
    found = by_name(tmp_path / "long")
    assert found.keys() == expected.keys()
    for name, sequence in found.items():
        torch.testing.assert_close(sequence.token_ids, expected[name].token_ids)
        assert sequence.prompt_length == expected[name].prompt_length
        torch.testing.assert_close(sequence.normed_NH, expected[name].normed_NH, atol=4e-3, rtol=2e-3)
        torch.testing.assert_close(sequence.auxiliary_NA, expected[name].auxiliary_NA, atol=4e-3, rtol=2e-3)
    assert num_tokens == sum(len(sequence.token_ids) - sequence.prompt_length for sequence in found.values())


def test_a_second_call_adds_nothing_and_workers_share(
    target: TorchTarget, expected: dict[str, TrainingSequence], tmp_path: Path
) -> None:
    store(target, tmp_path / "short", SHORT)
    for worker in (0, 1):
        shared = CollectionPlan(num_slots=3, max_prompt_tokens=32, max_new_tokens=LONG, worker=worker, num_workers=2)
        lengthen_answers(target, source=tmp_path / "short", folder=tmp_path / "long", plan=shared)
    assert by_name(tmp_path / "long").keys() == expected.keys()
    assert lengthen_answers(target, source=tmp_path / "short", folder=tmp_path / "long", plan=PLAN) == 0


def test_a_store_is_not_lengthened_into_itself(target: TorchTarget, tmp_path: Path) -> None:
    store(target, tmp_path / "short", SHORT)
    with pytest.raises(UsageError, match="are to become longer"):
        lengthen_answers(target, source=tmp_path / "short", folder=tmp_path / "short", plan=PLAN)
