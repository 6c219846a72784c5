"""A user's questions: JSON lines, each with `messages`, `turns`, `prompt` or `text`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from peagle_trt.errors import UsageError
from peagle_trt.train.corpus import Question

ROLES = ("system", "user", "assistant")


def read_question_file(path: Path) -> list[Question]:
    """Read questions; answers in the file are ignored, the target gives its own.

    Args:
        path: JSON lines. `{"messages": [{"role": "user", "content": ...}, ...]}` or `{"turns": [...]}` is a chat,
            `{"prompt": "..."}` one user turn, `{"text": "..."}` raw text to continue.

    Raises:
        UsageError: The file is missing, empty, or a line is none of these, has an empty turn or roles out of order.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"cannot read `{path}`: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"`{path}` is not UTF-8 text: byte {error.start}", hint="save it as UTF-8") from error
    questions = [_question(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not questions:
        raise UsageError(f"`{path}` holds no question")
    return questions


def _question(path: Path, number: int, line: str) -> Question:
    where = f"`{path}` line {number}"
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{where} is not JSON: {error}") from error
    for key, read in (("text", _texts), ("prompt", _texts), ("turns", _texts), ("messages", _messages)):
        if isinstance(entry, dict) and entry.get(key) is not None:
            system, turns = read(entry[key], f"{where}, `{key}`")
            return Question(source=path.stem, turns=turns, is_raw=key == "text", system=system)
    raise UsageError(f"{where} has no question", hint="give each line `messages`, `turns`, `prompt` or `text`")


def _texts(value: object, where: str) -> tuple[str, tuple[str, ...]]:
    texts = value if isinstance(value, list) else [value]
    if not texts:
        raise UsageError(f"{where}: expected text, found an empty list", hint="leave the line out, or fill it")
    for text in texts:
        _require_text(text, where)
    return "", tuple(texts)


def _messages(value: object, where: str) -> tuple[str, tuple[str, ...]]:
    """The system message and the user's turns; what the assistant said is only looked at for its place."""
    if not isinstance(value, list) or not value or not all(isinstance(message, dict) for message in value):
        raise UsageError(f"{where}: expected a list of messages", hint='each is {"role": ..., "content": ...}')
    roles = [message.get("role") for message in value]
    for role in roles:
        if role not in ROLES:
            raise UsageError(
                f"{where}: role `{role}`; expected one of {', '.join(ROLES)}",
                hint="rename the role, or leave the message out",
            )
    _require_order(roles, where)
    for message in value:
        _require_text(message.get("content"), where)
    system = value[0]["content"] if roles[0] == "system" else ""
    return system, tuple(message["content"] for message in value if message["role"] == "user")


def _require_order(roles: Sequence[object], where: str) -> None:
    spoken = roles[1:] if roles[0] == "system" else roles
    expected = [("user", "assistant")[place % 2] for place in range(max(1, len(spoken)))]
    if list(spoken) != expected:
        raise UsageError(
            f"{where}: roles are {', '.join(map(str, roles))}; expected user and assistant in turn",
            hint="a system message may come first, then a user's",
        )


def _require_text(text: object, where: str) -> None:
    if not isinstance(text, str):
        raise UsageError(f"{where}: expected text, found `{type(text).__name__}`", hint="give plain strings")
    if not text.strip():
        raise UsageError(f"{where}: a turn is empty", hint="leave the line out, or fill the turn")
