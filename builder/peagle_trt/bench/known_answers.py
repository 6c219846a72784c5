"""Shipped questions whose answers are known: text that people wrote, and problems that end in a number."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from typing import Any

from peagle_trt.bench import prompt_sets
from peagle_trt.errors import UsageError

_NUMBER = re.compile(r"-?\d[\d,]*\.?\d*")
GSM8K_REQUEST = "\nThink step by step, and end with the number that answers the question."


def questions_with_answers(count: int) -> list[tuple[str, str]]:
    """The first rows of GSM8K and of HumanEval, `count` of each, as question and a person's answer.

    Raises:
        UsageError: A set is missing.
    """
    worked = [(row["question"], re.sub(r"<<.*?>>", "", row["answer"])) for row in _rows("gsm8k", count)]
    return worked + [(row["prompt"], row["canonical_solution"]) for row in _rows("humaneval", count)]


def problems(count: int) -> list[tuple[str, str]]:
    """The first problems of GSM8K's test set, as request and the number that is right.

    Raises:
        UsageError: The set is missing.
    """
    return [(row["question"] + GSM8K_REQUEST, last_number(row["answer"])) for row in _rows("gsm8k", count)]


def last_number(text: str) -> str:
    """The last number of a text without its commas, or empty; how GSM8K is usually scored without examples."""
    found = _NUMBER.findall(text)
    return found[-1].replace(",", "").rstrip(".").removesuffix(".00") if found else ""


def _rows(name: str, count: int) -> Iterator[dict[str, Any]]:
    path = prompt_sets.FOLDER / prompt_sets.SHIPPED[name]
    try:
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise UsageError(f"the text set `{name}` cannot be read: {error}", hint="install peagle-trt again") from error
    for line in lines[:count]:
        yield json.loads(line)
