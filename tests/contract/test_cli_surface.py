"""The words scripts rely on. A change here is a change for users: say so in the CHANGELOG."""

from __future__ import annotations

import importlib

import click
import pytest

from peagle_trt.cli.global_options import GLOBAL_OPTIONS
from peagle_trt.cli.group import group
from peagle_trt.cli.registry import COMMANDS

GLOBAL = {"--help", "--json", "--quiet", "--verbose", "-h", "-q", "-v"}
SURFACE = {
    "build": {
        "--backend",
        "--config",
        "--draft-tokens",
        "--drafter",
        "--drafter-revision",
        "--drafter-scales",
        "--dry-run",
        "--force",
        "--keep-above",
        "--mask-token-id",
        "--max-batch-size",
        "--max-sequence-length",
        "--output",
        "--precision",
        "--revision",
        "--scales",
        "--sm",
        "--target",
        "--target-path",
        "--tokenizer",
        "--until",
        "-k",
        "-o",
    },
    "inspect": {"--loaders", "--mask-token-id", "--recipe", "--revision", "--target", "--tensors", "checkpoint"},
    "diagnose": {
        "--draft-tokens",
        "--mask-token-id",
        "--max-tokens",
        "--num-prompts",
        "--prompts",
        "--threads",
        "-k",
        "drafter",
        "target",
    },
    "convert": {
        "--keep-above",
        "--mask-token-id",
        "--output",
        "--recipe",
        "--scales",
        "--target",
        "--to",
        "-o",
        "checkpoint",
    },
    "verify": {"build_path"},
    "generate": {
        "--chat",
        "--draft-tokens",
        "--guide",
        "--ignore-eos",
        "--log-probs",
        "--max-seconds",
        "--min-tokens",
        "--num-answers",
        "--stop-token-id",
        "--max-tokens",
        "--method",
        "--no-chat",
        "--prompt-lookup",
        "--repetition-penalty",
        "--seed",
        "--stop",
        "--temperature",
        "--threads",
        "--top-k",
        "--top-p",
        "-k",
        "build_path",
        "prompt",
    },
    "bench report": {"--no-png", "--output", "--png", "-o", "run_paths"},
    "tune": {
        "--chat",
        "--config",
        "--dry-run",
        "--load",
        "--max-draft-tokens",
        "--max-tokens",
        "--no-chat",
        "--num-prompts",
        "--prompts",
        "--threads",
        "--turns",
        "-k",
        "build_path",
    },
    "repo": {"--check", "--cpu-build", "--output", "--prompt-lookup", "-o", "path"},
    "plan": {
        "--acceptance",
        "--cache-precision",
        "--concurrency",
        "--config",
        "--context",
        "--draft-tokens",
        "--drafter",
        "--gpu",
        "--mask-token-id",
        "--precision",
        "--target",
        "-k",
    },
    "doctor": {"--kernels", "--trtllm"},
    "targets": set[str](),
}

# Written elsewhere; these words of theirs are promised to users.
PROMISED = {
    "bench": {
        "--url",
        "--prompts",
        "--num-prompts",
        "--max-tokens",
        "--concurrency",
        "-k",
        "--method",
        "--baseline",
        "--baseline-build",
        "--against",
        "--problems",
        "--prompt-lookup",
        "--api-key-file",
        "--category",
        "--output",
        "--repeats",
        "--round-prompts",
        "--seed",
        "--temperature",
        "--warm-up",
    },
    "serve": {
        "path",
        "--http-port",
        "--grpc-port",
        "--metrics-port",
        "--profile",
        "--prompt-lookup",
        "--openai",
        "--openai-host",
        "--openai-port",
        "--api-key-file",
        "--tls-certificate",
        "--tls-key",
        "--max-body-bytes",
        "--max-answers",
        "--requests-per-minute",
    },
    "train": {
        "--target",
        "--data",
        "--output",
        "--layers",
        "--depths",
        "--refused-weight",
        "--steps",
        "--seed",
        "--segments",
        "--memory-budget",
        "--partition",
        "--loss",
        "--evaluate-every",
        "--patience",
        "--resume",
        "--features",
        "--device",
    },
}


def words_of(command: click.Command) -> set[str]:
    return {word for parameter in command.params for word in [*parameter.opts, *parameter.secondary_opts]}


def test_the_global_options_stay() -> None:
    assert {word for option in GLOBAL_OPTIONS for word in option.opts} == GLOBAL
    assert words_of(group) == {"--version"}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_hides_a_global_option(name: str) -> None:
    assert words_of(importlib.import_module(COMMANDS[name].module).command).isdisjoint(GLOBAL)


@pytest.mark.parametrize("name", SURFACE)
def test_a_command_keeps_its_words(name: str) -> None:
    assert words_of(importlib.import_module(COMMANDS[name].module).command) == SURFACE[name]


@pytest.mark.parametrize("name", PROMISED)
def test_a_command_keeps_what_was_promised(name: str) -> None:
    assert words_of(importlib.import_module(COMMANDS[name].module).command) >= PROMISED[name]


def test_every_command_has_its_words_here() -> None:
    assert SURFACE.keys() | PROMISED.keys() == COMMANDS.keys()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_explains_itself(name: str) -> None:
    command: click.Command = importlib.import_module(COMMANDS[name].module).command
    silent = [p.name for p in command.params if isinstance(p, click.Option) and not p.help]
    assert silent == []
