"""Questions to train on: public training sets, Python's own library and templates, never a benchmark."""

from __future__ import annotations

import ast
import json
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from peagle_trt.train.question_templates import EXERCISES, INSTRUCTIONS, MATERIALS, TOPICS

CODE_REQUESTS = (
    "Complete the following Python function. Only output the code, no explanations.\n",
    "Complete the following Python function.\n",
    "Finish this Python function.\n\n",
    "Implement the body of this function:\n\n",
)
# A question that shares this many words in a row with a benchmark's counts as a copy of it.
COPY_WORDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The user turns of a conversation, or raw text to continue.

    Attributes:
        source: Name of the set it comes from.
        turns: What the user says, one entry a turn.
        is_raw: The single turn is text to continue without a chat template.
        system: What the conversation opens with; empty for nothing.
    """

    source: str
    turns: tuple[str, ...]
    is_raw: bool = False
    system: str = ""


def read_word_problems(path: Path) -> Iterator[Question]:
    """Questions of GSM8K's training split, in file order."""
    for line in path.read_text(encoding="utf-8").splitlines():
        yield Question(source="gsm8k-train", turns=(json.loads(line)["question"],))


def read_chats(path: Path) -> Iterator[Question]:
    """User turns of a JSON-lines file of `messages`, without the "(v12)" marks of synthetic sets, each once."""
    seen = set()
    for line in path.read_text(encoding="utf-8").splitlines():
        messages = json.loads(line)["messages"]
        turns = tuple(
            re.sub(r"\s*\(v\d+\)$", "", message["content"]) for message in messages if message["role"] == "user"
        )
        if turns and turns not in seen:
            seen.add(turns)
            yield Question(source="chat", turns=turns[:2])


def read_library_functions(folder: Path, seed: int, name: str = "stdlib") -> Iterator[Question]:
    """Signatures with docstrings of a Python source tree, as requests and as raw text to continue.

    Args:
        folder: The tree; its tests are left out.
        seed: Of the kinds of request.
        name: Source of the questions.

    Yields:
        A question for each function, in the order of the files.
    """
    chooser = random.Random(seed)
    for path in sorted(folder.rglob("*.py")):
        if {"test", "tests", "idlelib", "lib2to3", "encodings", "site-packages"} & set(path.relative_to(folder).parts):
            continue
        source = path.read_text(encoding="utf-8", errors="replace")
        for header in _function_headers(source):
            if chooser.random() < 0.35:
                yield Question(source=f"{name}-raw", turns=(header,), is_raw=True)
            else:
                yield Question(source=name, turns=(chooser.choice(CODE_REQUESTS) + header,))


def compose_exercises(count: int, seed: int) -> Iterator[Question]:
    """Small programming tasks with worked examples, composed from parts and never repeated."""
    chooser = random.Random(seed)
    seen = set()
    for _ in range(count * 20):
        header = _exercise_header(chooser)
        if header not in seen:
            seen.add(header)
            weights = (6, 2, 1, 1)
            yield Question(source="exercise", turns=(chooser.choices(CODE_REQUESTS, weights)[0] + header,))
        if len(seen) >= count:
            return


def compose_instructions(count: int, seed: int) -> Iterator[Question]:
    """Requests of many kinds over many topics; some ask a second time."""
    chooser = random.Random(seed)
    pairs = [(kind, template, follow_up) for kind, group in INSTRUCTIONS.items() for template, follow_up in group]
    seen = set()
    for _ in range(count * 20):
        kind, template, follow_up = chooser.choice(pairs)
        first, second = chooser.sample(TOPICS, 2)
        text = template.format(
            topic=first,
            other=second,
            number=chooser.randint(2, 9),
            big=chooser.randint(11, 480),
            material=chooser.choice(MATERIALS),
        )
        if text not in seen:
            seen.add(text)
            yield Question(source=f"template-{kind}", turns=(text, follow_up) if chooser.random() < 0.3 else (text,))
        if len(seen) >= count:
            return


def drop_copies(questions: Iterable[Question], benchmark_texts: Iterable[str]) -> Iterator[Question]:
    """Leave out questions that repeat ten words in a row of a benchmark, and questions already seen."""
    forbidden = {gram for text in benchmark_texts for gram in _word_grams(text)}
    seen: set[str] = set()
    for question in questions:
        text = " ".join(question.turns)
        if text in seen or not forbidden.isdisjoint(_word_grams(text)):
            continue
        seen.add(text)
        yield question


def _word_grams(text: str) -> set[tuple[str, ...]]:
    # The requests themselves are shared with HumanEval's customary prefix and say nothing about the content.
    for request in CODE_REQUESTS:
        text = text.replace(request, " ")
    words = re.findall(r"[a-z0-9]+", text.lower())
    return {tuple(words[start : start + COPY_WORDS]) for start in range(len(words) - COPY_WORDS + 1)}


def _function_headers(source: str) -> Iterator[str]:
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return
    lines = source.splitlines()
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or not ast.get_docstring(node) or len(node.body) < 2:
            continue
        last = node.body[0].end_lineno
        assert last is not None
        header = "\n".join(line[node.col_offset :] for line in lines[node.lineno - 1 : last])
        if 80 <= len(header) <= 700:
            yield header + "\n"


def _exercise_header(chooser: random.Random) -> str:
    exercise = chooser.choice(EXERCISES)
    number = chooser.randint(2, 9)
    name, annotation, sentence, examples = exercise(chooser, number)
    quote = chooser.choice(('"""', '"""', "'''"))
    shown = "".join(f"    >>> {name}({call})\n    {result}\n" for call, result in examples)
    return f"def {name}({annotation}:\n    {quote}{chooser.choice(('', ' '))}{sentence}\n{shown}    {quote}\n"
