"""The prompts a measurement runs on: shipped sets, or a file of the same shapes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peagle_trt.errors import UsageError

FOLDER = Path(__file__).parent / "prompts"

HUMANEVAL_INSTRUCTION = "Complete the following Python function. Only output the code, no explanations.\n\n"
"""Source: the P-EAGLE model cards prefix HumanEval's prompts so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSet:
    """Prompts with a name.

    Attributes:
        name: Name of the set or path of the file.
        prompts: One user turn each.
    """

    name: str
    prompts: tuple[str, ...]


SHIPPED: Mapping[str, str] = {
    "mt-bench": "mt-bench.jsonl.gz",
    "humaneval": "humaneval.jsonl.gz",
    "gsm8k": "gsm8k.jsonl.gz",
}
"""Names that `--prompts` takes, and their files."""


def read_prompts(source: str, limit: int | None = None) -> PromptSet:
    """A shipped set by name, or a file.

    A file holds one JSON object a line, in any of these shapes: `{"turns": [...]}` (MT-Bench, Spec-Bench,
    SPEED-Bench; the first turn is taken), `{"question": ...}` (GSM8K), `{"messages": [...]}` (the first user turn),
    `{"prompt": ...}`; with a `task_id` beside its `prompt` it is taken for HumanEval and gets the instruction that the
    published cards use.

    Args:
        source: Name or path; `.gz` is unpacked.
        limit: How many prompts to take from the start; None takes all.

    Raises:
        UsageError: There is no such set or file, or a line has none of the shapes.
    """
    path = FOLDER / SHIPPED[source] if source in SHIPPED else Path(source)
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        lines = [line for line in content.decode("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise UsageError(
            f"cannot read the prompts `{source}`: {error}", hint=f"a file, or one of {', '.join(SHIPPED)}"
        ) from error
    prompts = tuple(_read_line(source, number, line) for number, line in enumerate(lines[:limit], start=1))
    if not prompts:
        raise UsageError(f"`{source}` holds no prompts")
    return PromptSet(name=source, prompts=prompts)


def _read_line(source: str, number: int, line: str) -> str:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise UsageError(f"`{source}` line {number} is not JSON: {error}") from error
    for key, read in _SHAPES.items():
        if isinstance(row, dict) and key in row:
            prompt = read(row)
            if isinstance(prompt, str) and prompt:
                return prompt
    raise UsageError(
        f"`{source}` line {number} has no prompt", hint=f"expected an object with one of the keys {', '.join(_SHAPES)}"
    )


def _first_user_turn(row: dict[str, Any]) -> str | None:
    messages = row["messages"]
    return next((message.get("content") for message in messages if message.get("role") == "user"), None)


def _prompt(row: dict[str, Any]) -> str:
    prompt = row["prompt"]
    return f"{HUMANEVAL_INSTRUCTION}{prompt}" if "task_id" in row else prompt


_SHAPES: Mapping[str, Callable[[dict[str, Any]], str | None]] = {
    "turns": lambda row: row["turns"][0] if row["turns"] else None,
    "question": lambda row: row["question"],
    "messages": _first_user_turn,
    "prompt": _prompt,
}
