"""`peagle-trt bench BUILD --against REFERENCE`: what a precision costs in answers and accepted drafts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypeVar

import click

from peagle_trt.bench.accuracy import Accuracy, Material, measure_accuracy
from peagle_trt.bench.known_answers import problems, questions_with_answers
from peagle_trt.bench.prompt_sets import read_prompts
from peagle_trt.cli.options import FOLDER
from peagle_trt.cli.output import Output
from peagle_trt.decode.session import open_build
from peagle_trt.errors import UsageError
from peagle_trt.machine import probe_machine

NUM_PROBLEMS = 100
PROBLEM_TOKENS = 256
"""Longest answer to a problem, as in scripts/measure_quantization."""
_Command = TypeVar("_Command", bound=Callable[..., Any])


def accuracy_options(command: _Command) -> _Command:
    """The options of a comparison; a command takes `against_path` and `num_problems`."""
    for option in (
        click.option(
            "--problems",
            "num_problems",
            type=click.IntRange(min=0),
            help=f"GSM8K test problems that --against scores both on; {NUM_PROBLEMS} by default.",
        ),
        click.option(
            "--against",
            "against_path",
            type=FOLDER,
            help="A build of the same pair in another precision: report what BUILD loses to it instead of speed.",
        ),
    ):
        command = option(command)
    return command


def compare(
    output: Output,
    build_path: Path | None,
    against_path: Path,
    *,
    url: str | None,
    prompts: str,
    num_prompts: int,
    max_tokens: int,
    draft_tokens: tuple[int | Literal["auto"], ...],
    num_problems: int | None,
    num_threads: int | None,
) -> None:
    """Measure, and report.

    Raises:
        UsageError: There is no build, several K were given, or the two cannot be compared.
    """
    if build_path is None or url is not None:
        raise UsageError("--against compares a BUILD with another, not a served one", hint="leave --url out")
    if len(draft_tokens) != 1 or draft_tokens[0] == "auto":
        raise UsageError("--against measures at one K", hint="give one number, such as -k 5")
    material = Material(
        prompts=tuple(each for name in prompts.split(",") for each in read_prompts(name, num_prompts).prompts),
        written=tuple(questions_with_answers(num_prompts)),
        problems=tuple(problems(NUM_PROBLEMS if num_problems is None else num_problems)),
        max_tokens=max_tokens,
        problem_tokens=PROBLEM_TOKENS,
        draft_tokens=draft_tokens[0],
    )
    reference = open_build(against_path, num_threads=num_threads)
    build = open_build(build_path, num_threads=num_threads)
    found = measure_accuracy(build, reference, material, output.progress)
    precisions = {"precision": build.manifest.precision, "reference_precision": reference.manifest.precision}
    settings = {
        "build": build_path,
        "against": against_path,
        "prompts": prompts,
        "num_prompts": num_prompts,
        "max_tokens": max_tokens,
        "draft_tokens": material.draft_tokens,
        "problem_tokens": PROBLEM_TOKENS,
    }
    document = {**precisions, **asdict(found), "settings": settings, "machine": asdict(probe_machine())}
    output.result(document, _text(found, **precisions))


def _text(found: Accuracy, precision: str, reference_precision: str) -> str:
    rows = [("", precision, reference_precision)]
    for name, figures in found.texts.items():
        rows += [
            (f"{name}: {figures.num_texts} texts, {figures.num_tokens:,} tokens", "", ""),
            ("  KL, nats a token", f"{figures.kl_nats:.4f}", "0"),
            ("  top-1 agreement", f"{figures.top1_agreement:.1%}", "100%"),
            ("  perplexity", f"{figures.perplexity:.3f}", f"{figures.reference_perplexity:.3f}"),
        ]
    score = found.score
    if score is not None:
        total = score.num_problems
        rows += [
            ("GSM8K problems right", f"{score.num_right} of {total}", f"{score.reference_num_right} of {total}"),
            ("  with the same number", f"{score.num_same} of {total}", ""),
        ]
    accepted = found.acceptance
    rows += [
        (f"same answers to {found.num_prompts} prompts", f"{found.same_answers:.0%}", ""),
        ("acceptance length", f"{accepted.both:.2f}", f"{accepted.reference:.2f}"),
        ("  target alone in this precision", f"{accepted.target_only:.2f}", ""),
        ("  drafter alone in this precision", f"{accepted.drafter_only:.2f}", ""),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
