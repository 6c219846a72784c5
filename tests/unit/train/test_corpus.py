from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from peagle_trt.train.corpus import (
    Question,
    compose_exercises,
    compose_instructions,
    drop_copies,
    read_chats,
    read_library_functions,
)
from peagle_trt.train.vocabulary import choose_draft_vocabulary, draft_offsets


def test_questions_that_repeat_a_benchmark_are_left_out() -> None:
    copied = "Janet's ducks lay 16 eggs per day. She eats three for breakfast every morning and sells the rest."
    questions = [
        Question(source="a", turns=(f"Please help: {copied}",)),
        Question(source="a", turns=("How do I sell the eggs of my ducks?",)),
    ]
    assert [q.turns[0] for q in drop_copies(questions, [copied])] == ["How do I sell the eggs of my ducks?"]


def test_a_question_is_asked_once() -> None:
    question = Question(source="a", turns=("What is photosynthesis?",))
    assert len(list(drop_copies([question, question], []))) == 1


def test_chats_lose_their_version_marks_and_repetitions(tmp_path: Path) -> None:
    lines = [{"messages": [{"role": "user", "content": f"What is photosynthesis? (v{number})"}]} for number in (1, 22)]
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [question.turns for question in read_chats(path)] == [("What is photosynthesis?",)]


def test_library_functions_end_with_their_docstring(tmp_path: Path) -> None:
    documentation = "Return the sum of two numbers, which may be of any type that knows how to add."
    (tmp_path / "module.py").write_text(
        f'class A:\n    def add(a, b):\n        """{documentation}"""\n        return a + b\n'
    )
    (question,) = read_library_functions(tmp_path, seed=0)
    assert question.turns[0].endswith(f'def add(a, b):\n    """{documentation}"""\n')
    assert "return a" not in question.turns[0]


def test_exercises_show_examples_that_hold() -> None:
    questions = list(compose_exercises(100, seed=3))
    assert len({question.turns for question in questions}) == 100
    squares = next(q.turns[0] for q in questions if "square_all" in q.turns[0])
    call, result = squares.split(">>> square_all(")[1].split(")\n    ")
    numbers = json.loads(call)
    assert json.loads(result.split("\n")[0]) == [number * number for number in numbers]


def test_instructions_are_distinct_and_repeatable() -> None:
    first = list(compose_instructions(200, seed=1))
    assert first == list(compose_instructions(200, seed=1))
    assert len({question.turns[0] for question in first}) == 200


@pytest.mark.parametrize(("coverage", "expected"), [(0.5, 1024), (1.0, 2048)])
def test_the_vocabulary_covers_what_was_asked_in_whole_steps(coverage: float, expected: int) -> None:
    # Tokens 0..1499 occur equally often: half of the text needs 750 of them, all of it 1,500.
    counts = np.where(np.arange(4096) < 1500, 10, 0)
    vocabulary = choose_draft_vocabulary(counts, coverage=coverage, always=[4000])
    assert len(vocabulary) == expected
    assert 4000 in vocabulary
    assert (np.diff(vocabulary) > 0).all()
    assert (np.arange(expected) + draft_offsets(vocabulary) == vocabulary).all()
