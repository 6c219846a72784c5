"""The program as a shell starts it: streams, signals and folders that are not as they should be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from peagle_trt.cli.main import run
from peagle_trt.cli.signals import SignalWatch

MAIN = "from peagle_trt.cli.main import main; main()"


def shell(redirection: str, *words: str, code: str = MAIN) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command line under a redirection of the shell's."""
    script = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-c", code, *words]
    finished = subprocess.run(script, capture_output=True, text=True, check=False)
    return finished.returncode, finished.stdout, finished.stderr


@pytest.fixture
def build_path(tiny_build: Path) -> str:
    return str(tiny_build)


def test_an_answer_needs_no_stderr(build_path: str) -> None:
    words = ["generate", build_path, "hello", "--max-tokens", "4"]
    _, expected, _ = shell("", *words)
    assert expected
    assert shell("2>&-", *words) == (0, expected, "")
    assert shell("2>/dev/full", *words) == (0, expected, "")


def test_a_failure_needs_no_stderr() -> None:
    code, out, err = shell("2>&-", "verify", "nowhere", "--json")
    assert (code, json.loads(out)["error"]["exit_code"], err) == (2, 2, "")


UNWRITABLE = {">&-": "bad file descriptor", ">/dev/full": "no space left on device"}


@pytest.mark.parametrize("words", [["targets"], ["targets", "--json"], ["--help"], ["--version"], ["build", "-h"]])
@pytest.mark.parametrize(("redirection", "reason"), UNWRITABLE.items())
def test_a_stdout_that_takes_nothing_is_named(redirection: str, reason: str, words: list[str]) -> None:
    code, out, err = shell(redirection, *words)
    assert (code, out) == (3, "")
    assert err.splitlines()[0] == f"error: cannot write to stdout: {reason}"
    assert "Traceback" not in err


def test_every_stream_may_be_closed() -> None:
    assert shell("<&- >&- 2>&-", "targets") == (3, "", "")
    code, out, _ = shell("<&-", "targets", "--json")
    assert (code, json.loads(out)["ok"]) == (0, True)


@pytest.mark.parametrize("words", [["targets"], ["--help"], ["--version"], ["targets", "--json"]])
def test_a_reader_that_goes_away_is_no_fault(words: list[str]) -> None:
    # The shell closes its end before the program writes.
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", MAIN, *words]
    finished = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert finished.returncode == 128 + signal.SIGPIPE
    assert finished.stderr == b""


def test_a_name_that_is_not_unicode_is_still_a_document() -> None:
    script = ["sh", "-c", 'exec "$@"', "sh", sys.executable, "-c", MAIN, "verify", b"no\xff", "--json"]
    finished = subprocess.run(script, capture_output=True, check=False)
    assert finished.returncode == 2
    assert "no\udcff" in json.loads(finished.stdout)["error"]["message"]


@pytest.mark.parametrize("words", [["targets"], ["verify", "."], ["build", "--target", "tiny"]])
def test_a_working_directory_that_is_gone_is_named(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    script = f'cd {tmp_path}/gone && rmdir {tmp_path}/gone && exec "$@"'
    command = ["sh", "-c", script, "sh", sys.executable, "-c", MAIN, *words]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 3
    assert finished.stderr.splitlines()[0] == "error: the working directory no longer exists"


# Sends a signal while a module is imported; the import shows whether it was disturbed.
INTERRUPTED = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            try:
                os.kill(os.getpid(), signal.{number})
            except BaseException as error:
                os.write(2, b"disturbed")
                raise ImportError("a part of the library failed to load") from error
sys.meta_path.insert(0, Finder())
from peagle_trt.cli.main import main
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("module", ["click", "peagle_trt.cli.verify"])
def test_a_signal_during_an_import_waits_for_its_end(module: str, number: signal.Signals) -> None:
    code = INTERRUPTED.format(module=module, number=number.name)
    exit_code, _, err = shell("", "verify", "nowhere", code=code)
    assert exit_code == 128 + number
    assert "Traceback" not in err
    assert "disturbed" not in err


def test_a_signal_while_a_command_is_imported_is_a_document() -> None:
    code = INTERRUPTED.format(module="peagle_trt.cli.verify", number="SIGINT")
    exit_code, out, _ = shell("", "verify", "nowhere", "--json", code=code)
    assert (exit_code, json.loads(out)["error"]["exit_code"]) == (130, 130)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_after_the_result_changes_nothing(number: signal.Signals) -> None:
    late = f"import atexit, os; atexit.register(os.kill, os.getpid(), {number.value})"
    exit_code, out, err = shell("", "targets", "--json", code=f"{late}\n{MAIN}")
    assert (exit_code, json.loads(out)["ok"], err) == (0, True, "")


def test_an_error_after_a_signal_is_the_signal_s(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = SignalWatch()
    watch.received = signal.SIGINT
    monkeypatch.setattr("peagle_trt.catalog.list_entries", lambda: 1 / 0)
    assert run(["targets", "--json"], watch) == 130
    assert json.loads(capsys.readouterr().out)["error"]["message"] == "stopped by SIGINT"
