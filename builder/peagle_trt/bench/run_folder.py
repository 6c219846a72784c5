"""A run on disk: its settings, a line for every measured cell, and its result; an interrupted run goes on."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from peagle_trt.bench.cells import Cell
from peagle_trt.errors import UsageError
from peagle_trt.files import locked_folder, naming_os_errors, write_text

SETTINGS_NAME = "settings.json"
CELLS_NAME = "cells.jsonl"
RESULT_NAME = "result.json"


class RunFolder:
    """A folder that one process at a time measures into.

    Attributes:
        path: The folder.
        cells: Cells of whole rounds, from earlier calls and this one.
    """

    def __init__(self, path: Path, *, cells_a_round: int) -> None:
        self.path = path
        self.cells = _whole_rounds(_read_cells(path / CELLS_NAME), cells_a_round)
        # A round that was interrupted, or in which a request failed, is measured again as a whole: its ratios are of
        # methods that took turns.
        write_text(path / CELLS_NAME, "".join(map(_line, self.cells)))

    @property
    def rounds(self) -> set[tuple[str, int]]:
        """Sets of prompts and rounds that are done."""
        return {(cell.prompts, cell.round) for cell in self.cells}

    def add(self, cells: Iterable[Cell]) -> None:
        """Take a round in."""
        with naming_os_errors(self.path), (self.path / CELLS_NAME).open("a", encoding="utf-8") as file:
            for cell in cells:
                file.write(_line(cell))
                self.cells.append(cell)

    def finish(self, document: Mapping[str, object]) -> None:
        """Write the result."""
        write_text(self.path / RESULT_NAME, json.dumps(document, indent=1, default=_plain) + "\n")


@contextlib.contextmanager
def open_run_folder(path: Path, settings: Mapping[str, object], *, cells_a_round: int) -> Iterator[RunFolder]:
    """Open a run, new or interrupted.

    Args:
        path: Its folder.
        settings: Whatever decides what a cell means; the cells of two calls are of one run only if all are equal.
        cells_a_round: Methods that take turns in a round.

    Raises:
        UsageError: The folder holds something else, or a run with other settings.
        MachineError: Another process measures into it, or it cannot be written.
    """
    wanted = json.loads(json.dumps(settings, default=_plain))
    with naming_os_errors(path):
        if path.exists() and not (path / SETTINGS_NAME).is_file() and (not path.is_dir() or any(path.iterdir())):
            raise UsageError(f"`{path}` exists and is no run of `bench`", hint="choose another folder with -o")
    with locked_folder(path, f"another process is measuring into `{path}`"):
        if (path / SETTINGS_NAME).is_file():
            _refuse_changes(path, wanted)
        else:
            write_text(path / SETTINGS_NAME, json.dumps(wanted, indent=1) + "\n")
        yield RunFolder(path, cells_a_round=cells_a_round)


def _refuse_changes(path: Path, wanted: Mapping[str, object]) -> None:
    try:
        found = json.loads((path / SETTINGS_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"cannot read `{path / SETTINGS_NAME}`: {error}", hint="choose another folder") from error
    if not isinstance(found, dict):
        raise UsageError(f"`{path / SETTINGS_NAME}` is no JSON object", hint="choose another folder")
    for name in dict.fromkeys([*found, *wanted]):
        if found.get(name) != wanted.get(name):
            raise UsageError(
                f"`{path}` was begun with `{name}` = `{json.dumps(found.get(name))}`, now it is "
                f"`{json.dumps(wanted.get(name))}`",
                hint="a run is of one kind: call it as before, or choose another folder with -o",
            )


def _read_cells(path: Path) -> list[Cell]:
    """Cells whose lines are whole; a call that was killed may have left half of one at the end."""
    if not path.is_file():
        return []
    with naming_os_errors(path):
        lines = path.read_bytes().splitlines()
    cells = []
    for number, line in enumerate(lines, start=1):
        try:
            cells.append(msgspec.json.decode(line, type=Cell))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            if number == len(lines):
                break
            raise UsageError(
                f"`{path}` line {number} is no cell: {error}", hint="begin the run in another folder"
            ) from error
    return cells


def _whole_rounds(cells: list[Cell], cells_a_round: int) -> list[Cell]:
    rounds: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        rounds.setdefault((cell.prompts, cell.round), []).append(cell)
    return [cell for cell in cells if _is_whole(rounds[cell.prompts, cell.round], cells_a_round)]


def _is_whole(cells: list[Cell], cells_a_round: int) -> bool:
    """Whether every method answered the same prompts once.

    Of a damaged file that is not certain. Where a request failed it may be another server that is asked now.
    """
    if any(cell.failures for cell in cells):
        return False
    counts = {len(cell.answers) for cell in cells}
    has_all_methods = len(cells) == cells_a_round == len({cell.method for cell in cells})
    return has_all_methods and len(counts) == 1 and 0 not in counts and all(cell.seconds > 0 for cell in cells)


def _line(cell: Cell) -> str:
    return msgspec.json.encode(cell).decode() + "\n"


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    raise TypeError(f"{type(value).__name__} has no place in a document")
