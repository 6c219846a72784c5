"""Options of `bench` that say how is measured, gathered into one value."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from peagle_trt.bench.clients import Sampling
from peagle_trt.bench.patience import REQUEST_TIMEOUT_SECONDS
from peagle_trt.bench.prompt_sets import PromptSet, read_prompts
from peagle_trt.cli.options import FILE, FOLDER, prompt_lookup_option
from peagle_trt.errors import UsageError

MAX_REPEATS = 1000
MAX_SEED = 2**31 - 1
_OPTIONS = (
    click.option("--category", "categories", help="Take only prompts of these categories of their file, a list."),
    click.option(
        "--repeats",
        type=click.IntRange(1, MAX_REPEATS),
        default=1,
        show_default=True,
        help="How often every batch of prompts is answered by every method.",
    ),
    click.option(
        "--round-prompts",
        type=click.IntRange(min=1),
        help="Prompts of a round; by default the largest --concurrency, full only until its first answer ends.",
    ),
    click.option(
        "--warm-up",
        type=click.IntRange(min=0),
        default=1,
        show_default=True,
        help="Prompts that are answered before the clock runs.",
    ),
    click.option(
        "--temperature",
        type=click.FloatRange(min=0),
        default=0.0,
        show_default=True,
        help="0 takes the most likely token; only then can answers be compared with the baseline's.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(0, MAX_SEED),
        default=0,
        show_default=True,
        help="Of sampling; every prompt of a batch has its own.",
    ),
    prompt_lookup_option,
    click.option(
        "-o",
        "--output",
        "run_path",
        type=FOLDER,
        metavar="RUN",
        help="Keep every measured cell in this folder; the same call again goes on where an earlier one stopped.",
    ),
    click.option(
        "--timeout",
        "timeout_seconds",
        type=click.FloatRange(min=0, min_open=True),
        help=f"Longest time for one request of a server, in seconds; by default {REQUEST_TIMEOUT_SECONDS:.0f}.",
    ),
    click.option("--api-key-file", type=FILE, help="File whose first line is the key of an OpenAI door."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """How is measured.

    Attributes:
        categories: Categories of prompts; empty for all.
        repeats: How often every batch is answered.
        round_prompts: Prompts of a round, or None.
        warm_up: Prompts answered before the clock runs.
        sampling: How tokens are chosen.
        prompt_lookup: Whether copies from the text may take the place of drafts.
        run_path: Folder of the run, or None to keep nothing.
        api_key: Of an OpenAI door, or None.
        timeout_seconds: Longest time for one request of a server, or None where nothing was said.
    """

    categories: tuple[str, ...]
    repeats: int
    round_prompts: int | None
    warm_up: int
    sampling: Sampling
    prompt_lookup: bool
    run_path: Path | None
    api_key: str | None
    timeout_seconds: float | None

    def read_sets(self, names: str, limit: int) -> tuple[PromptSet, ...]:
        """The sets of prompts that `--prompts` names; a file's own name may hold commas.

        Raises:
            UsageError: One is none, or is named twice.
        """
        parts = [names] if Path(names).is_file() else names.split(",")
        if len(set(parts)) < len(parts):
            raise UsageError(f"--prompts `{names}` names a set twice")
        return tuple(read_prompts(part, limit, categories=self.categories) for part in parts)


def measuring_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command, which gets them as `measuring`."""

    @functools.wraps(command)
    def gathered(
        *arguments: Any,
        categories: str | None,
        repeats: int,
        round_prompts: int | None,
        warm_up: int,
        temperature: float,
        seed: int,
        prompt_lookup: bool,
        run_path: Path | None,
        api_key_file: Path | None,
        timeout_seconds: float | None,
        **others: Any,
    ) -> None:
        measuring = Measuring(
            categories=tuple(categories.split(",")) if categories else (),
            repeats=repeats,
            round_prompts=round_prompts,
            warm_up=warm_up,
            sampling=Sampling(temperature=temperature, seed=seed),
            prompt_lookup=prompt_lookup,
            run_path=run_path,
            api_key=_read_key(api_key_file) if api_key_file else None,
            timeout_seconds=timeout_seconds,
        )
        command(*arguments, measuring=measuring, **others)

    for option in reversed(_OPTIONS):
        gathered = option(gathered)
    return gathered


def _read_key(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read `{path}`: {error}") from error
    key = lines[0].strip() if lines else ""
    if not key or not key.isascii():
        raise UsageError(f"`{path}` holds no key in its first line")
    return key
