"""`--config FILE`: keys are the long options' names, values have their types."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import click
import pytest

from peagle_trt.cli.main import run
from peagle_trt.cli.options import FOLDER, NumberList, config_option
from peagle_trt.errors import UsageError

Values = dict[str, Any]


@pytest.fixture
def command() -> click.Command:
    """Gives back its options."""

    @click.command("made-up")
    @click.option("--target")
    @click.option("-o", "--output", "output_path", type=FOLDER)
    @click.option("-k", "--draft-tokens", type=click.IntRange(1, 16))
    @click.option("--rate", type=click.FloatRange(0.0, 1.0))
    @click.option("--chat/--no-chat", "is_chat", default=None)
    @click.option("--dry-run", is_flag=True)
    @click.option("--concurrency", type=NumberList(min=1))
    @click.option("--load", type=NumberList(min=1, words=["auto"]))
    @click.option("--stage", type=click.Choice(["read", "graph"]))
    @config_option
    def made_up(**values: Any) -> Values:
        return values

    return made_up


def read(command: click.Command, folder: Path, text: str, *words: str) -> Values:
    path = folder / "settings.toml"
    path.write_text(text, encoding="utf-8")
    values: Values = command.main(["--config", str(path), *words], standalone_mode=False)
    return {key: value for key, value in values.items() if value not in (None, False)}


ACCEPTED: dict[str, Values] = {
    'target = "tiny"': {"target": "tiny"},
    'output = "here"': {"output_path": Path("here")},
    "draft-tokens = 3": {"draft_tokens": 3},
    "draft_tokens = 3": {"draft_tokens": 3},
    "rate = 1": {"rate": 1.0},
    "rate = 0.5": {"rate": 0.5},
    "chat = true": {"is_chat": True},
    "dry-run = true": {"dry_run": True},
    "concurrency = 4": {"concurrency": (4,)},
    "concurrency = [1, 4]": {"concurrency": (1, 4)},
    'concurrency = "1,4"': {"concurrency": (1, 4)},
    'load = [1, "auto"]': {"load": (1, "auto")},
    'stage = "graph"': {"stage": "graph"},
    "": {},
}


@pytest.mark.parametrize(("text", "values"), ACCEPTED.items())
def test_a_key_is_a_long_option(command: click.Command, tmp_path: Path, text: str, values: Values) -> None:
    assert read(command, tmp_path, text) == values


def test_a_byte_order_mark_is_no_part_of_the_first_key(command: click.Command, tmp_path: Path) -> None:
    assert read(command, tmp_path, "\ufeffdraft-tokens = 3") == {"draft_tokens": 3}


def test_what_is_typed_wins(command: click.Command, tmp_path: Path) -> None:
    assert read(command, tmp_path, "draft-tokens = 3", "-k", "5") == {"draft_tokens": 5}


UNKNOWN = {
    "output-path = 'x'": "did you mean `output`?",
    "draft-token = 3": "did you mean `draft-tokens`?",
    "is_chat = true": "did you mean",
    "no-chat = true": "did you mean `chat`?",
    "help = true": "known: ",
    "config = 'x'": "known: ",
    "json = true": "known: ",
    "[build]\ntarget = 'tiny'": "known: ",
}


@pytest.mark.parametrize(("text", "hint"), UNKNOWN.items())
def test_another_key_is_met_with_a_suggestion(command: click.Command, tmp_path: Path, text: str, hint: str) -> None:
    with pytest.raises(UsageError, match=r"`.*settings\.toml` has the unknown key `") as caught:
        read(command, tmp_path, text)
    assert hint in caught.value.hint


WRONG_TYPES = {
    'target = ["tiny"]': '`target` is `["tiny"]`, a list; expected text',
    "target = {a = 1}": '`target` is `{"a": 1}`, a table; expected text',
    "target = 3": "`target` is `3`, a whole number; expected text",
    "target = 1979-05-27": f'`target` is `"{datetime.date(1979, 5, 27)}"`, a date or time; expected text',
    "output = true": "`output` is `true`, a truth value; expected text",
    "draft-tokens = 2.5": "`draft-tokens` is `2.5`, a number; expected a whole number",
    "draft-tokens = true": "`draft-tokens` is `true`, a truth value; expected a whole number",
    'draft_tokens = "3"': '`draft_tokens` is `"3"`, text; expected a whole number',
    "rate = false": "`rate` is `false`, a truth value; expected a number",
    'chat = "yes"': '`chat` is `"yes"`, text; expected true or false',
    "dry-run = 1": "`dry-run` is `1`, a whole number; expected true or false",
    "concurrency = [1, true]": "`concurrency` is `[1, true]`, a list; expected a whole number or a list of them",
    "stage = 1": "`stage` is `1`, a whole number; expected text",
    "draft-tokens = 99": "`draft-tokens` is `99`: 99 is not in the range 1<=x<=16",
    "concurrency = []": "`concurrency` is `[]`: the list is empty",
    'concurrency = "1,x"': """`concurrency` is `"1,x"`: 'x' is no whole number""",
    'load = [1, "AUTO"]': """`load` is `[1, "AUTO"]`: 'AUTO' is no whole number, nor `auto`""",
    'output = ""': '`output` is `""`: it is empty',
    'output = "a\\u0000b"': "it holds a NUL character",
    'stage = "later"': "`stage` is `\"later\"`: 'later' is not one of",
    "draft-tokens = 1\ndraft_tokens = 2": "has the key `draft-tokens` twice",
    "draft-tokens = ": "cannot read",
    f"target = {'[' * 5000}": "cannot read",
}


@pytest.mark.parametrize(("text", "message"), WRONG_TYPES.items(), ids=range(len(WRONG_TYPES)))
def test_a_value_that_does_not_suit_is_named(command: click.Command, tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(command, tmp_path, text)
    assert "settings.toml" in caught.value.message
    assert message in caught.value.message


def test_a_file_that_cannot_be_read_is_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "missing.toml", tmp_path, tmp_path / "binary.toml"):
        assert run(["build", "--target", "tiny", "--config", str(path), "--json"]) == 2
        assert str(path) in json.loads(capsys.readouterr().out)["error"]["message"]
