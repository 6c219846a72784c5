"""Everything the command line prints: results on stdout, progress and errors on stderr."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TextIO

from peagle_trt.cli.streams import discard
from peagle_trt.errors import MachineError


class ReaderGoneError(Exception):
    """Nobody reads stdout or stderr any more; click would hide the system's own error behind exit code 1."""


class Output:
    """Where a command's words go.

    Attributes:
        is_json: One JSON document on stdout instead of text, also on failure.
        is_quiet: No progress.
        verbosity: How often more of it was asked for.
    """

    def __init__(self, *, is_json: bool = False, is_quiet: bool = False) -> None:
        self.is_json = is_json
        self.is_quiet = is_quiet
        self.verbosity = 0
        self._has_result = False

    def result(self, document: Mapping[str, object], text: str) -> None:
        """Report success, once a command.

        Args:
            document: What `--json` prints, beside `"ok": true`.
            text: What is printed otherwise.
        """
        assert not self._has_result, "a command has one result"
        self._has_result = True
        _say(_to_json({"ok": True, **document}) if self.is_json else text, sys.stdout)

    def finish(self) -> None:
        """Close a command that succeeded; one that had nothing to say still yields a document."""
        if self.is_json and not self._has_result:
            self.result({}, "")

    def stream(self, piece: str) -> None:
        """Print a piece of an answer as it comes; silent with `--json`, where the result holds it whole."""
        if not self.is_json:
            _write(piece, sys.stdout)

    def progress(self, line: str) -> None:
        """One line about what is going on."""
        if not self.is_quiet:
            _say(line, sys.stderr)

    @contextlib.contextmanager
    def bar(self, label: str, total: int) -> Iterator[Callable[[int, str], None]]:
        """A bar on stderr while something long goes on; nothing where stderr is no terminal.

        Args:
            label: What goes on.
            total: Steps of it.

        Yields:
            Takes the steps that are done and a few words.
        """
        import click

        hidden = self.is_quiet or not sys.stderr.isatty()
        with click.progressbar(
            length=total, label=label, file=sys.stderr, hidden=hidden, item_show_func=lambda words: words
        ) as shown:
            yield lambda done, words: shown.update(done - shown.pos, words)

    def failure(self, error_type: str, message: str, *, hint: str, exit_code: int) -> None:
        """Report a failure: a line on stderr, and with `--json` a document on stdout too."""
        _say(f"error: {message}", sys.stderr)
        if hint:
            _say(f"hint: {hint}", sys.stderr)
        if self.is_json and not self._has_result:
            self._has_result = True
            error = {"type": error_type, "message": message, "hint": hint, "exit_code": exit_code}
            _say(_to_json({"ok": False, "error": error}), sys.stdout)


def _say(text: str, stream: TextIO) -> None:
    _write(text + "\n", stream)


def _write(text: str, stream: TextIO) -> None:
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError as error:
        raise ReaderGoneError from error
    except OSError as error:
        discard(stream)
        # A lost line about the work is no reason to end it; a lost result is.
        if stream is not sys.stderr:
            raise MachineError(
                f"cannot write to stdout: {os.strerror(error.errno or 0).lower()}",
                hint="send the results to a file with room, or to /dev/null",
            ) from error


def _to_json(document: Mapping[str, object]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False, default=_plain)


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):
        return value.item()
    if hasattr(value, "__struct_fields__"):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    raise TypeError(f"{type(value).__name__} has no place in a document")
