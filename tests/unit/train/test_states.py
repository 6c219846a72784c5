"""Hidden states from the target itself: those that a store holds, but for float16; in any pass; through every path."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peagle_trt import catalog
from peagle_trt.errors import UsageError
from peagle_trt.train.features import (
    AnswerText,
    FeatureWriter,
    TrainingSequence,
    read_all_sequences,
    read_all_texts,
    read_index,
)
from peagle_trt.train.generate import Answer, Prompt, answer_prompts
from peagle_trt.train.optimizer import OptimizerSettings
from peagle_trt.train.request import TrainingRequest
from peagle_trt.train.run import train_head
from peagle_trt.train.run_state import STATE_NAME, WORK_NAME, read_metrics
from peagle_trt.train.settings import TrainingSettings
from peagle_trt.train.start import auxiliary_scale
from peagle_trt.train.states import ComputedStates, complete_each, most_stored_tokens, token_bytes
from peagle_trt.train.target import TorchTarget, read_torch_target

AUXILIARY = (1, 2, 3)
# Ten bits of a float16, over states of magnitude ten and sums in another order.
TOLERANCE = {"atol": 4e-3, "rtol": 2e-3}


@pytest.fixture(scope="module")
def tiny() -> Path:
    return catalog.target_path(catalog.find_entry("tiny"))


@pytest.fixture(scope="module")
def target(tiny: Path) -> TorchTarget:
    return read_torch_target(tiny, torch.float32, AUXILIARY)


@pytest.fixture(scope="module")
def answers(target: TorchTarget) -> list[Answer]:
    generator = np.random.default_rng(5)
    prompts = [
        Prompt(
            identifier=str(place),
            source="test",
            token_ids=tuple(generator.integers(300, 2000, 1 + 3 * place).tolist()),
            max_new_tokens=4 + place,
        )
        for place in range(6)
    ]
    return list(answer_prompts(target, iter(prompts), choose=target.greedy_tokens, num_slots=2, capacity=64))


def text_of(answer: Answer) -> AnswerText:
    token_ids = torch.tensor(answer.token_ids, dtype=torch.int32)
    return AnswerText(token_ids=token_ids, prompt_length=len(answer.prompt.token_ids))


@pytest.mark.parametrize(("pass_tokens", "pass_rows"), [(1, 512), (60, 512), (2048, 512), (2048, 7), (40, 1)])
def test_states_are_those_of_the_answers_in_any_pass(
    target: TorchTarget, answers: list[Answer], pass_tokens: int, pass_rows: int
) -> None:
    states = ComputedStates(target, pass_tokens=pass_tokens, pass_rows=pass_rows)
    for answer, found in zip(answers, states.complete([text_of(answer) for answer in answers]), strict=True):
        assert tuple(found.token_ids.tolist()) == answer.token_ids
        torch.testing.assert_close(found.auxiliary_NA, answer.auxiliary_NA.float(), **TOLERANCE)
        torch.testing.assert_close(found.normed_NH, answer.normed_NH.float(), **TOLERANCE)


def test_passes_keep_to_their_limit_and_miss_nothing(target: TorchTarget) -> None:
    lengths = [9, 3, 30, 30, 4, 1, 12]
    passes = list(ComputedStates(target, pass_tokens=60)._passes(lengths))
    assert sorted(place for places in passes for place in places) == list(range(7))
    assert all(len(places) * lengths[places[0]] <= 60 for places in passes)
    assert list(ComputedStates(target, pass_tokens=5)._passes([9, 8])) == [[0], [1]]


def test_the_scale_of_columns_is_that_of_all_rows_together(sequences: list[TrainingSequence]) -> None:
    rows = torch.cat([sequence.auxiliary_NA[1:].float() for sequence in sequences[:5]])
    expected = rows.square().mean(dim=0).sqrt()
    torch.testing.assert_close(auxiliary_scale(iter(sequences), num_sequences=5), expected)


def test_a_store_without_states_holds_the_texts(answers: list[Answer], tmp_path: Path) -> None:
    empty = [replace(a, auxiliary_NA=a.auxiliary_NA[:, :0], normed_NH=a.normed_NH[:, :0]) for a in answers]
    writer = FeatureWriter(tmp_path, answers_per_shard=4)
    for answer in empty:
        writer.add(answer)
    writer.flush()
    found = [tuple(text.token_ids.tolist()) for text in read_all_texts(tmp_path)]
    assert found == [answer.token_ids for answer in answers]
    num_tokens = sum(len(answer.token_ids) for answer in answers)
    stored = sum((tmp_path / shard.file).stat().st_size for shard in read_index(tmp_path))
    # Beside the tokens: lengths, and a header each of two shards.
    assert stored < 4 * num_tokens + 1000
    with pytest.raises(UsageError, match="stored without hidden states, first in `shard-00000"):
        read_all_sequences(tmp_path)


def test_an_index_of_an_earlier_release_has_states(answers: list[Answer], tmp_path: Path) -> None:
    writer = FeatureWriter(tmp_path)
    writer.add(answers[0])
    writer.flush()
    path = tmp_path / "index.jsonl"
    line = json.loads(path.read_text())
    assert line.pop("has_states") is True
    path.write_text(json.dumps(line) + "\n")
    assert len(read_all_sequences(tmp_path)) == len(read_all_texts(tmp_path)) == 1


def test_stored_tokens_count_every_turn_with_those_before_it() -> None:
    single = Prompt(identifier="0", source="t", token_ids=(1, 2, 3), max_new_tokens=10)
    double = Prompt(identifier="1", source="t", token_ids=(1, 2), max_new_tokens=5, follow_ups=((7, 8, 9),))
    assert most_stored_tokens([single, double]) == 13 + 7 + (7 + 3 + 5)
    assert token_bytes("computed", hidden_size=64, num_auxiliary=3) == 4
    assert token_bytes("cached", hidden_size=64, num_auxiliary=3) == 4 + 4 * 64 * 2


@pytest.mark.parametrize("method", ["p-eagle", "eagle3"])
def test_losses_from_computed_states_are_the_stored_ones_but_for_their_rounding(
    tiny: Path, tmp_path: Path, method: Any
) -> None:
    said: list[str] = []
    first = train_head(request_for(tiny, tmp_path / "a", method=method), report=said.append)
    second = train_head(request_for(tiny, tmp_path / "b", method=method, features="computed"), report=said.append)
    assert any(line.startswith(" * cached: 1,540 bytes a token") for line in said)
    assert any(line.startswith(" * computed: 4 bytes a token") for line in said)
    expected, found = (losses(tmp_path / name) for name in "ab")
    # The first loss sees rounding alone; later ones what the optimizer made of it.
    assert found[0] == pytest.approx(expected[0], rel=1e-4)
    assert found == pytest.approx(expected, rel=1e-2)
    assert second.held_out.num_tokens == first.held_out.num_tokens
    assert second.held_out.length == pytest.approx(first.held_out.length, rel=0.1)
    stored, bare = (size_of(tmp_path / name) for name in "ab")
    assert stored > 50 * bare


def test_a_resumed_training_on_computed_states_is_the_unbroken_one(tiny: Path, tmp_path: Path) -> None:
    whole = request_for(tiny, tmp_path / "whole", features="computed")
    train_head(whole, report=lambda line: None)
    broken = request_for(tiny, tmp_path / "broken", features="computed")

    def stop(step: int, *_: object) -> None:
        if step == 2:
            raise KeyboardInterrupt

    quick = replace(broken, settings=replace(broken.settings, save_seconds=0.0))
    with pytest.raises(KeyboardInterrupt):
        train_head(quick, report=lambda line: None, on_step=stop)
    train_head(replace(broken, is_resumed=True), report=lambda line: None)
    assert losses(broken.output_path.parent) == losses(whole.output_path.parent)
    found, expected = (
        torch.load(each.output_path / f"work/run/{STATE_NAME}", weights_only=True)["average"]
        for each in (broken, whole)
    )
    assert all(torch.equal(value, expected[name]) for name, value in found.items())
    with pytest.raises(UsageError, match="stored without hidden states"):
        train_head(replace(broken, features="cached", is_resumed=True), report=lambda line: None)


def test_one_text_at_a_time_is_complete(target: TorchTarget, answers: list[Answer]) -> None:
    found = complete_each(ComputedStates(target), [text_of(answer) for answer in answers[:2]])
    assert [len(sequence.normed_NH) for sequence in found] == [len(a.token_ids) - 1 for a in answers[:2]]


def request_for(tiny: Path, folder: Path, **changes: Any) -> TrainingRequest:
    folder.mkdir()
    names = ("Tom", "Anna", "Mary", "John", "Sam", "Lily")
    lines = [{"prompt": f"{name} has {n} apples and buys {n + 1} more. How many?"} for name in names for n in (2, 5)]
    questions = folder / "q.jsonl"
    questions.write_text("".join(json.dumps(line) + "\n" for line in lines))
    request = TrainingRequest(
        target_path=tiny,
        questions_path=questions,
        output_path=folder / "head",
        num_layers=1,
        auxiliary_layers=AUXILIARY,
        max_new_tokens=16,
        draft_tokens=3,
        settings=TrainingSettings(
            optimizer=OptimizerSettings(total_steps=4, warmup_steps=1), tokens_per_step=150, average_decay=0.0
        ),
    )
    return replace(request, **changes)


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(folder / "head" / WORK_NAME / "run") if "loss" in line]


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / "head" / WORK_NAME / "features").glob("*.safetensors"))
