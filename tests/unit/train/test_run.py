from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peagle_trt import catalog
from peagle_trt.errors import CheckpointError, UsageError
from peagle_trt.readers import read_drafter
from peagle_trt.train.corpus import Question
from peagle_trt.train.fitting import MemoryRequest
from peagle_trt.train.generate import Answer, Prompt
from peagle_trt.train.optimizer import OptimizerSettings
from peagle_trt.train.prompting import ChatFormat, invented_question, make_prompts, read_chat_format
from peagle_trt.train.question_files import read_question_file
from peagle_trt.train.request import TrainingRequest
from peagle_trt.train.run import train_head
from peagle_trt.train.run_state import METRICS_NAME, WORK_NAME
from peagle_trt.train.settings import TrainingSettings
from peagle_trt.train.target import read_torch_target

END = 1


@pytest.fixture(scope="module")
def tiny() -> Path:
    return catalog.target_path(catalog.find_entry("tiny"))


@pytest.fixture(scope="module")
def chat(tiny: Path) -> ChatFormat:
    return read_chat_format(tiny, END)


def write_lines(path: Path, lines: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ({"prompt": "a"}, Question(source="q", turns=("a",))),
        ({"turns": ["a", "b"]}, Question(source="q", turns=("a", "b"))),
        ({"text": "a"}, Question(source="q", turns=("a",), is_raw=True)),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "x"}]},
            Question(source="q", turns=("a",)),
        ),
    ],
)
def test_each_form_of_a_question_is_read(tmp_path: Path, line: dict[str, object], expected: Question) -> None:
    assert read_question_file(write_lines(tmp_path / "q.jsonl", [line])) == [expected]


@pytest.mark.parametrize("line", [{}, {"prompt": 3}, {"turns": []}, {"messages": [{"role": "user"}]}, ["a"], "a"])
def test_a_line_without_a_question_is_named(tmp_path: Path, line: object) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"prompt": "a"}\n' + json.dumps(line) + "\n")
    with pytest.raises(UsageError, match="line 2"):
        read_question_file(path)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"messages": [{"role": "user", "content": " "}]}, "a turn is empty"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}]}, "a turn is empty"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "role `robot`; expected one of system, user, assistant"),
        ({"messages": [{"content": "a"}]}, "role `None`"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "expected user and assistant in turn"),
        ({"messages": [{"role": "user", "content": "a"}] * 2}, "expected user and assistant in turn"),
        ({"messages": [{"role": "system", "content": "a"}]}, "expected user and assistant in turn"),
        ({"messages": "a"}, "expected a list of messages"),
        ({"turns": ["a", ""]}, "a turn is empty"),
        ({"prompt": ""}, "a turn is empty"),
        ({"text": ["a", 3]}, "found `int`"),
    ],
)
def test_turns_that_no_chat_can_have_are_refused(tmp_path: Path, line: dict[str, object], reason: str) -> None:
    path = write_lines(tmp_path / "q.jsonl", [{"prompt": "a"}, line])
    with pytest.raises(UsageError, match="line 2") as error:
        read_question_file(path)
    assert reason in error.value.message


def test_a_system_message_opens_the_conversation(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    (question,) = read_question_file(write_lines(tmp_path / "q.jsonl", [{"messages": messages}]))
    assert question == Question(source="q", turns=("Why?",), system="Be brief.")


def test_a_prompt_ends_where_the_answer_begins(chat: ChatFormat) -> None:
    (prompt,) = make_prompts([Question(source="a", turns=("How many?",))], chat, max_prompt_tokens=50, max_new_tokens=8)
    assert chat.tokenizer.decode(prompt.token_ids) == "Question: How many?\nAnswer:"


def test_prompts_that_are_too_long_are_left_out_and_keep_the_places_of_others(chat: ChatFormat) -> None:
    questions = [Question(source="a", turns=("Why? " * 100,)), Question(source="a", turns=("Why?",))]
    prompts = list(make_prompts(questions, chat, max_prompt_tokens=50, max_new_tokens=8))
    assert [prompt.identifier for prompt in prompts] == ["1"]


@pytest.mark.parametrize(("num_tokens", "ends"), [(3, True), (300, True), (20, False)])
def test_invented_questions_out_of_bounds_are_left_out(chat: ChatFormat, num_tokens: int, ends: bool) -> None:
    prompt = Prompt(identifier="0", source="invented", token_ids=(5,), max_new_tokens=400)
    written = (*([300] * num_tokens), *([END] if ends else []))
    answer = Answer(prompt=prompt, token_ids=(5, *written), auxiliary_NA=None, normed_NH=None)  # type: ignore[arg-type]
    assert invented_question(answer, chat) is None


def test_the_mask_token_is_a_special_one_that_no_text_holds(chat: ChatFormat) -> None:
    # The tiny tokenizer's specials are pad 0, end 1 and mask 2.
    counts = np.ones(2048, dtype=np.int64)
    counts[[0, 2]] = 0
    assert chat.unused_token_id(counts) == 2


def test_auxiliary_layers_that_do_not_exist_are_refused(tiny: Path) -> None:
    with pytest.raises(CheckpointError, match="auxiliary layers"):
        read_torch_target(tiny, torch.float32, (2, 3, 4))


def test_a_whole_training_leaves_a_head_that_the_readers_accept(tiny: Path, tmp_path: Path) -> None:
    names = ("Tom", "Anna", "Mary", "John", "Sam", "Lily")
    lines = [{"prompt": f"{name} has {n} apples and buys {n + 1} more. How many?"} for name in names for n in (2, 5)]
    request = TrainingRequest(
        target_path=tiny,
        questions_path=write_lines(tmp_path / "q.jsonl", lines),
        output_path=tmp_path / "head",
        num_layers=1,
        auxiliary_layers=(1, 2, 3),
        max_new_tokens=24,
        settings=TrainingSettings(
            optimizer=OptimizerSettings(total_steps=3, warmup_steps=1), tokens_per_step=150, average_decay=0.0
        ),
    )
    said: list[str] = []
    steps: list[int] = []
    report = train_head(request, report=said.append, on_step=lambda step, _, __: steps.append(step))
    assert steps == [1, 2, 3]
    assert report.num_answers == 11
    assert report.held_out.length >= 1.0
    assert report.mask_token_id == 2
    checkpoint = read_drafter(tmp_path / "head")
    assert checkpoint.config.num_layers == 1
    assert checkpoint.config.num_depths == 7
    assert "acceptance length" in said[-1]
    assert any("1 segment(s)" in line for line in said)
    assert (report.num_steps, report.best_step) == (3, 3)
    assert (tmp_path / "head" / WORK_NAME / "curves.svg").read_text().startswith("<svg")
    metrics = [
        json.loads(line) for line in (tmp_path / "head" / WORK_NAME / "run" / METRICS_NAME).read_text().splitlines()
    ]
    assert metrics[-1]["acceptance_length"] == report.decoded_acceptance_length
    with pytest.raises(UsageError, match="earlier training"):
        train_head(request, report=said.append)
    with pytest.raises(UsageError, match="layers `1`, this one has `2`"):
        train_head(replace(request, is_resumed=True, num_layers=2), report=said.append)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mask_token_id": 5000}, "outside the target's vocabulary of 2048"),
        ({"max_prompt_tokens": 3}, "all 6 questions are longer than 3 tokens"),
        ({"max_prompt_tokens": 10**6}, "exceed the target's"),
        ({"memory": MemoryRequest(num_segments=2, budget_bytes=1 << 30)}, "number of segments and a memory budget"),
        ({"memory": MemoryRequest(budget_bytes=1 << 20)}, "the budget is 1 MiB"),
        ({"memory": MemoryRequest(method="recomputed", budget_bytes=1 << 30)}, "kept by `cached` partition only"),
    ],
)
def test_requests_that_cannot_be_honoured_are_refused(
    tiny: Path, questions: Path, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        train_head(replace(short_request(tiny, questions, tmp_path), **changes), report=lambda line: None)


def test_a_mask_token_that_occurs_in_the_data_is_refused(
    tiny: Path, chat: ChatFormat, questions: Path, tmp_path: Path
) -> None:
    used = chat.conversation_ids("Tom has 3 apples. How many?")[0]
    request = replace(short_request(tiny, questions, tmp_path), mask_token_id=used)
    with pytest.raises(UsageError, match=f"mask token `{used}` occurs in the data, first in answer `0`"):
        train_head(request, report=lambda line: None)


def short_request(tiny: Path, questions: Path, folder: Path) -> TrainingRequest:
    return TrainingRequest(
        target_path=tiny,
        questions_path=questions,
        output_path=folder / "head",
        num_layers=1,
        auxiliary_layers=(1, 2, 3),
        max_new_tokens=12,
        settings=TrainingSettings(optimizer=OptimizerSettings(total_steps=1, warmup_steps=1)),
    )


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    lines = [{"prompt": f"Tom has {n} apples and buys {n + 1} more. How many?"} for n in range(3, 9)]
    return write_lines(tmp_path / "questions.jsonl", lines)
