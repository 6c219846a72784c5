"""The options that every command takes, wherever they stand."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import click
import pytest

from peagle_trt.cli.global_options import options_in
from peagle_trt.cli.main import run
from peagle_trt.cli.registry import COMMANDS

PLACES = {
    "before": ["--json", "targets"],
    "after": ["targets", "--json"],
    "both": ["--json", "targets", "--json"],
    "with_others": ["-v", "targets", "-qv", "--json"],
}


@pytest.fixture(autouse=True)
def same_level_afterwards() -> Iterator[None]:
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


@pytest.mark.parametrize("words", PLACES.values(), ids=PLACES.keys())
def test_json_is_taken_anywhere(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


REFUSED = {
    "unknown_option_after": ["targets", "--bogus", "--json"],
    "unknown_option_before": ["--bogus", "targets", "--json"],
    "unknown_command": ["tragets", "--json"],
    "missing_value": ["build", "--json", "--target"],
    "missing_option": ["build", "--json"],
    "value_for_a_flag": ["build", "--dry-run=yes", "--json"],
    "too_many": ["targets", "x", "--json"],
    "no_command": ["-v", "--json"],
    "value_for_json": ["targets", "--json=1"],
    "empty": ["verify", "", "--json"],
}


@pytest.mark.parametrize("words", REFUSED.values(), ids=REFUSED.keys())
def test_a_refusal_is_json_where_that_was_asked_for(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    assert json.loads(capsys.readouterr().out)["error"]["exit_code"] == 2


TEXT = {
    "value_of_an_option": ["bench", "nowhere", "--prompts", "--json"],
    "value_of_a_letter": ["bench", "nowhere", "-qk", "--json"],
    "behind_the_end_of_options": ["verify", "--", "--json"],
    "not_at_all": ["verify", "nowhere"],
}


@pytest.mark.parametrize("words", TEXT.values(), ids=TEXT.keys())
def test_a_word_that_only_looks_like_it_is_not_taken_for_it(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert capsys.readouterr().out == ""


LINES = {
    "-k 5 --json": ["-k", "--json"],
    "-k5 --json": ["-k", "--json"],
    "-k --json": ["-k"],
    "-qk --json": ["-q", "-k"],
    "-k5k --json": ["-k", "--json"],
    "--draft-tokens=5 --json": ["--draft-tokens", "--json"],
    "--draft-tokens --json": ["--draft-tokens"],
    "BUILD -q -- --json": ["-q"],
    "--strange --json": ["--strange", "--json"],
}


@pytest.mark.parametrize(("line", "options"), LINES.items())
def test_options_are_told_from_their_values(line: str, options: list[str]) -> None:
    assert list(options_in(line.split(), [click.Option(["-k", "--draft-tokens"])])) == options


@pytest.mark.parametrize("words", [["--json", "--version"], ["--version", "--json"]])
def test_the_version_is_a_document_too(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 0
    assert json.loads(capsys.readouterr().out).keys() == {"ok", "version"}


@pytest.mark.parametrize("words", [["--json", "--help"], ["targets", "-h", "--json"]])
def test_help_is_a_document_too(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 0
    assert "Usage: peagle-trt" in json.loads(capsys.readouterr().out)["help"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_the_global_options_apart(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    section = capsys.readouterr().out.partition("Global options:")[2]
    assert all(word in section for word in ("--json", "--quiet", "--verbose", "--help"))


def test_quiet_is_taken_after_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["build", "--target", "tiny", "--dry-run", "-q"]) == 0
    assert capsys.readouterr().err == ""


VERBOSITY = {
    "default": (["targets"], logging.WARNING),
    "before": (["-v", "targets"], logging.INFO),
    "after": (["targets", "-v"], logging.INFO),
    "added_up": (["-v", "targets", "-v"], logging.DEBUG),
}


@pytest.mark.parametrize(("words", "level"), VERBOSITY.values(), ids=VERBOSITY.keys())
def test_verbosity_adds_up(words: list[str], level: int) -> None:
    assert run(words) == 0
    assert logging.getLogger().level == level


def test_no_command_is_answered_alike_with_and_without_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    bare = capsys.readouterr().err
    assert run(["-v"]) == 2
    assert capsys.readouterr().err == bare
    assert "Commands:" in bare


EMPTY = {
    "argument": ["inspect", ""],
    "name": ["inspect", "x", "--target", ""],
    "equals": ["build", "--target="],
    "folder": ["verify", ""],
    "output": ["build", "--target", "tiny", "-o", ""],
    "file": ["build", "--target", "tiny", "--config", ""],
}


@pytest.mark.parametrize("words", EMPTY.values(), ids=EMPTY.keys())
def test_empty_text_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    assert "it is empty" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["nan", "inf"])
def test_a_number_that_is_none_is_refused(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", "--target", "tiny", "--data", "x", "-o", "y", "--learning-rate", number]) == 2
    assert "is not a finite number" in capsys.readouterr().err
