"""A user's questions: JSON lines, each with `messages`, `turns` or `prompt`."""

from __future__ import annotations

import json
from pathlib import Path

from peagle_trt.errors import UsageError
from peagle_trt.train.corpus import Question


def read_question_file(path: Path) -> list[Question]:
    """Read questions; answers in the file are ignored, the target gives its own.

    Args:
        path: JSON lines. `{"messages": [{"role": "user", "content": ...}, ...]}` or `{"turns": [...]}` is a chat,
            `{"prompt": "..."}` one user turn, `{"text": "..."}` raw text to continue.

    Raises:
        UsageError: The file is missing, empty, or a line is none of these.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"cannot read `{path}`: {error.strerror}") from error
    questions = [_question(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not questions:
        raise UsageError(f"`{path}` holds no question")
    return questions


def _question(path: Path, number: int, line: str) -> Question:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise UsageError(f"`{path}` line {number} is not JSON: {error}") from error
    if isinstance(entry, dict):
        if isinstance(entry.get("text"), str):
            return Question(source=path.stem, turns=(entry["text"],), is_raw=True)
        found = _turns(entry)
        turns = tuple(turn for turn in found if isinstance(turn, str) and turn)
        if turns and len(turns) == len(found):
            return Question(source=path.stem, turns=turns)
    raise UsageError(
        f"`{path}` line {number} has no question", hint="give each line `messages`, `turns`, `prompt` or `text`"
    )


def _turns(entry: dict[str, object]) -> list[object]:
    prompt, turns, messages = entry.get("prompt"), entry.get("turns"), entry.get("messages")
    if prompt is not None:
        return [prompt]
    if isinstance(turns, list):
        return turns
    if isinstance(messages, list):
        return [m.get("content") for m in messages if isinstance(m, dict) and m.get("role") == "user"]
    return []
