"""Options of `generate` beside those of the sampling: how an answer ends, what it follows, what is told about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from peagle_trt.decode.guidance import GUIDE_KINDS, GuideCompiler, GuideKind, GuideSettings
from peagle_trt.decode.log_probs import MAX_TOP_LOG_PROBS
from peagle_trt.decode.request import GenerationRequest
from peagle_trt.decode.session import LoadedBuild
from peagle_trt.errors import UsageError

Command = TypeVar("Command", bound=Callable[..., Any])

MAX_ANSWERS = 16
MAX_SECONDS = 86_400.0
_OPTIONS = (
    click.option(
        "--num-answers", type=click.IntRange(1, MAX_ANSWERS), default=1, show_default=True, help="Answers to give."
    ),
    click.option("--min-tokens", type=click.IntRange(min=0), default=0, show_default=True, help="Shortest answer."),
    click.option("--ignore-eos", is_flag=True, help="Let no end token of the model end the answer."),
    click.option(
        "--stop-token-id", "stop_token_ids", type=click.IntRange(min=0), multiple=True, help="Ends the answer too."
    ),
    click.option(
        "--max-seconds", type=click.FloatRange(0.0, MAX_SECONDS, min_open=True), help="Then the answer ends as it is."
    ),
    click.option(
        "--guide",
        type=(click.Choice(GUIDE_KINDS), str),
        metavar="KIND TEXT",
        help=f"A grammar to follow; KIND is one of {', '.join(GUIDE_KINDS)}, TEXT the grammar or @FILE.",
    ),
    click.option(
        "--log-probs",
        "num_top_log_probs",
        type=click.IntRange(0, MAX_TOP_LOG_PROBS),
        help="Tell how likely every token was, and of the likeliest in its place so many.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOptions:
    """What was typed; the names are those of the options."""

    num_answers: int
    min_tokens: int
    ignore_eos: bool
    stop_token_ids: tuple[int, ...]
    max_seconds: float | None
    guide: tuple[str, str] | None
    num_top_log_probs: int | None

    def apply(self, request: GenerationRequest, build: LoadedBuild) -> GenerationRequest:
        """The request with what was typed.

        Raises:
            UsageError: The grammar's file cannot be read.
            RequestError: The grammar is none.
        """
        ends = () if self.ignore_eos else request.end_ids
        return replace(
            request,
            end_ids=(*ends, *self.stop_token_ids),
            sampling=replace(request.sampling, min_tokens=self.min_tokens),
            deadline_seconds=self.max_seconds,
            num_top_log_probs=self.num_top_log_probs,
            guide=None if self.guide is None else _compile(build, *self.guide),
        )


def answer_options(command: Command) -> Command:
    """Adds the options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def _compile(build: LoadedBuild, kind: str, text: str) -> Any:
    target = build.manifest.target
    settings = GuideSettings(kind=cast(GuideKind, kind), text=_read(text))
    return GuideCompiler(build.tokenizer, target.vocab_size, target.eos_token_ids).compile(settings, field="--guide")


def _read(text: str) -> str:
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the grammar `{text[1:]}`: {error}") from error
