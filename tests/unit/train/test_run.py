from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from peagle_trt import catalog
from peagle_trt.errors import CheckpointError, UsageError
from peagle_trt.readers import read_drafter
from peagle_trt.train.corpus import Question
from peagle_trt.train.generate import Answer, Prompt
from peagle_trt.train.llama import read_llama
from peagle_trt.train.optimizer import OptimizerSettings
from peagle_trt.train.prompting import ChatFormat, invented_question, make_prompts, read_chat_format
from peagle_trt.train.question_files import read_question_file
from peagle_trt.train.run import TrainingRequest, train_head
from peagle_trt.train.trainer import TrainingSettings

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
        read_llama(tiny, torch.float32, (2, 3, 4))


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
    report = train_head(request, report=said.append)
    assert report.num_answers == 11
    assert report.held_out.length >= 1.0
    assert report.mask_token_id == 2
    checkpoint = read_drafter(tmp_path / "head")
    assert checkpoint.config.num_layers == 1
    assert checkpoint.config.num_depths == 7
    assert "acceptance length" in said[-1]
    with pytest.raises(UsageError, match="earlier training"):
        train_head(request, report=said.append)
