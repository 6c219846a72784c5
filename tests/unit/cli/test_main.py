"""The process boundary: exit codes, documents, and nothing that escapes."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from peagle_trt.cli import registry
from peagle_trt.cli.main import run
from peagle_trt.cli.output import Output
from peagle_trt.cli.signals import EndedBySignal
from peagle_trt.errors import (
    CheckpointError,
    MachineError,
    PeagleError,
    PlanError,
    RequestError,
    UsageError,
    VerificationError,
)

ENDINGS: dict[type[BaseException], int] = {
    PeagleError: 1,
    RequestError: 2,
    UsageError: 2,
    PlanError: 2,
    MachineError: 3,
    CheckpointError: 4,
    VerificationError: 5,
    RuntimeError: 70,
    MemoryError: 3,
    KeyboardInterrupt: 130,
}


Failing = Callable[[BaseException], None]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Failing:
    """Makes `targets` raise an exception."""

    def fail_with(error: BaseException) -> None:
        def callback() -> None:
            raise error

        monkeypatch.setattr("peagle_trt.cli.targets.command", click.Command("targets", callback=callback))

    return fail_with


@pytest.mark.parametrize(("kind", "code"), ENDINGS.items())
def test_every_ending_has_its_code_and_one_document(
    kind: type[BaseException], code: int, failing: Failing, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(kind("made up"))
    assert run(["--json", "targets"]) == code
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is False
    assert document["error"]["exit_code"] == code
    assert document["error"].keys() == {"type", "message", "hint", "exit_code"}


def test_a_termination_signal_unwinds_and_is_reported(failing: Failing, capsys: pytest.CaptureFixture[str]) -> None:
    failing(EndedBySignal(signal.SIGTERM))
    assert run(["--json", "targets"]) == 143
    assert json.loads(capsys.readouterr().out)["error"]["message"] == "stopped by SIGTERM"


def test_a_full_disk_anywhere_is_the_machine_s_fault(failing: Failing, capsys: pytest.CaptureFixture[str]) -> None:
    failing(OSError(28, "No space left on device", "/some/file"))
    assert run(["targets"]) == 3
    assert "cannot use `/some/file`: no space is left" in capsys.readouterr().err


def test_a_copy_to_a_full_disk_names_where_it_went(failing: Failing, capsys: pytest.CaptureFixture[str]) -> None:
    failing(OSError(28, "No space left on device", "/from/here", None, "/to/there"))
    assert run(["targets"]) == 3
    assert "cannot use `/to/there`: no space is left" in capsys.readouterr().err


MISUSES = {
    "unknown_command": (["biuld"], "no such command `biuld`; did you mean `build`?"),
    "unknown_option": (["build", "--traget", "x"], "No such option '--traget'"),
    "missing_option": (["build"], "Missing option '--target'"),
    "bad_number": (["build", "--target", "tiny", "-k", "17"], "17 is not in the range 1<=x<=16"),
    "bad_k": (["generate", "build", "x", "-k", "17"], "17 is not in the range 0<=x<=16, nor `auto`"),
    "bad_word_for_k": (["generate", "build", "x", "-k", "AUTO"], "'AUTO' is no whole number, nor `auto`"),
    "bad_k_of_a_list": (["bench", "build", "-k", "3,0"], "0 is not in the range 1<=x<=16, nor `auto`"),
    "bad_word_of_a_list": (["bench", "build", "-k", "3,AUTO"], "'AUTO' is no whole number, nor `auto`"),
    "bad_choice": (["build", "--target", "tiny", "--precision", "fp7"], "'fp7' is not"),
    "bad_stage": (["build", "--target", "tiny", "--until", "later"], "'later' is not one of 'read', 'quantize'"),
    "unknown_target": (["build", "--target", "tinny"], "`tinny` is no known target and no path"),
    "no_build": (["verify", "."], "is not a finished build"),
    "nothing": ([], "no command given"),
    "only_a_global_option": (["-v"], "no command given"),
}


@pytest.mark.parametrize(("arguments", "message"), MISUSES.values(), ids=MISUSES.keys())
def test_wrong_use_is_explained(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--json", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in json.loads(captured.out)["error"]["message"]
    assert message in captured.err


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["build", "--help"], ["-h"]])
def test_help_is_no_failure(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 0
    assert capsys.readouterr().err == ""


def test_every_command_has_a_module() -> None:
    for name, entry in registry.COMMANDS.items():
        command = __import__(entry.module, fromlist=["command"]).command
        assert command.name == name
        assert command.help


def test_a_result_is_text_or_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    Output(is_json=False).result({"path": Path("x")}, "done")
    assert capsys.readouterr().out == "done\n"
    Output(is_json=True).result({"path": Path("x")}, "done")
    assert json.loads(capsys.readouterr().out) == {"ok": True, "path": "x"}


def test_verbosity_comes_from_the_environment_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PEAGLE_TRT_LOG_LEVEL", "loud")
    assert run(["targets"]) == 2
    assert "PEAGLE_TRT_LOG_LEVEL is `loud`" in capsys.readouterr().err
