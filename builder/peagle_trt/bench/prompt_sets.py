"""The prompts a measurement runs on: shipped sets, or a file of the same shapes."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peagle_trt.errors import UsageError

FOLDER = Path(__file__).parent / "prompts"

HUMANEVAL_INSTRUCTION = "Complete the following Python function. Only output the code, no explanations.\n\n"
"""Source: the P-EAGLE model cards prefix HumanEval's prompts so."""


PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
"""Start of a turn that SPEED-Bench publishes empty, for the reader to fetch elsewhere.

Source: NVIDIA's specdec_bench, whose `prepare_data.py` fills such turns in.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSet:
    """Prompts with a name.

    Attributes:
        name: Name of the set or path of the file.
        prompts: One user turn each.
        categories: Kind of each prompt as its file says, or "" where it does not.
    """

    name: str
    prompts: tuple[str, ...]
    categories: tuple[str, ...] = ()


SHIPPED: Mapping[str, str] = {
    "mt-bench": "mt-bench.jsonl.gz",
    "humaneval": "humaneval.jsonl.gz",
    "gsm8k": "gsm8k.jsonl.gz",
}
"""Names that `--prompts` takes, and their files."""


def read_prompts(source: str, limit: int | None = None, *, categories: Collection[str] = ()) -> PromptSet:
    """A shipped set by name, or a file.

    A file holds one JSON object a line, in any of these shapes: `{"turns": [...]}` (the `question.jsonl` of MT-Bench
    and Spec-Bench, SPEED-Bench's rows; the first turn is taken), `{"question": ...}` (GSM8K), `{"messages": [...]}`
    (the first user turn), `{"prompt": ...}`; with a `task_id` beside its `prompt` it is taken for HumanEval and gets
    the instruction that the published cards use. A turn is a text, or an object with a `content`.

    Args:
        source: Name or path; `.gz` is unpacked.
        limit: How many prompts to take from the start; None takes all.
        categories: Take only prompts of these; empty takes all.

    Raises:
        UsageError: There is no such set or file, or a line has none of the shapes.
    """
    # Every line is read, also behind the limit: a file that is damaged there is no set to measure on.
    rows = [_read_line(source, number, line) for number, line in enumerate(_lines(source), start=1)]
    chosen = [row for row in rows if not categories or row[1] in categories][:limit]
    if not chosen:
        found = sorted({category for _, category in rows if category})
        raise UsageError(
            f"`{source}` holds no prompts" + (f" of {', '.join(categories)}" if categories else ""),
            hint=f"its categories: {', '.join(found)}" if found else "",
        )
    # A file's name need not be UTF-8, which documents are.
    name = os.fsencode(source).decode("utf-8", "backslashreplace")
    return PromptSet(name=name, prompts=tuple(row[0] for row in chosen), categories=tuple(row[1] for row in chosen))


def _lines(source: str) -> list[str]:
    path = FOLDER / SHIPPED[source] if source in SHIPPED else Path(source)
    if path.suffix == ".parquet":
        raise UsageError(
            f"`{source}` is a Parquet file; this reads JSON lines",
            hint="convert it: python -c \"import pandas; pandas.read_parquet('A').to_json('B', orient='records', "
            'lines=True)"',
        )
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        # Not `splitlines`: JSON may hold U+2028 and its like as they are. Editors of Windows begin a file with a mark.
        return [line for line in content.decode("utf-8-sig").split("\n") if line.strip()]
    except (OSError, UnicodeDecodeError, EOFError, zlib.error) as error:
        raise UsageError(
            f"cannot read the prompts `{source}`: {error}", hint=f"a file, or one of {', '.join(SHIPPED)}"
        ) from error


def _read_line(source: str, number: int, line: str) -> tuple[str, str]:
    """The prompt and its category."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"`{source}` line {number} is not JSON: {error}") from error
    for key, read in _SHAPES.items():
        if isinstance(row, dict) and key in row:
            prompt = read(row)
            if isinstance(prompt, str) and prompt:
                _refuse_placeholder(source, number, prompt)
                category = row.get("category")
                return prompt, category if isinstance(category, str) else ""
    raise UsageError(
        f"`{source}` line {number} has no prompt", hint=f"expected an object with one of the keys {', '.join(_SHAPES)}"
    )


def _refuse_placeholder(source: str, number: int, prompt: str) -> None:
    if prompt.startswith(PLACEHOLDER):
        raise UsageError(
            f"`{source}` line {number} is a placeholder of SPEED-Bench, not a prompt",
            hint="fill them in with `prepare_data.py` of NVIDIA's specdec_bench, then convert to JSON lines",
        )


def _first_turn(row: dict[str, Any]) -> object:
    turns = row["turns"]
    first = turns[0] if isinstance(turns, list) and turns else None
    return first.get("content") if isinstance(first, dict) else first


def _first_user_turn(row: dict[str, Any]) -> str | None:
    messages = row["messages"]
    users = [each for each in messages if isinstance(each, dict)] if isinstance(messages, list) else []
    return next((message.get("content") for message in users if message.get("role") == "user"), None)


def _prompt(row: dict[str, Any]) -> object:
    prompt = row["prompt"]
    return f"{HUMANEVAL_INSTRUCTION}{prompt}" if "task_id" in row and isinstance(prompt, str) else prompt


_SHAPES: Mapping[str, Callable[[dict[str, Any]], object]] = {
    "turns": _first_turn,
    "question": lambda row: row["question"],
    "messages": _first_user_turn,
    "prompt": _prompt,
}
