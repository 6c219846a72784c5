"""Runs on disk: interrupted ones go on, and unlike ones are kept apart."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from peagle_trt.bench.cells import Cell, CellAnswer, Method
from peagle_trt.bench.run_folder import CELLS_NAME, SETTINGS_NAME, open_run_folder
from peagle_trt.errors import MachineError, UsageError

SETTINGS = {"max_tokens": 8, "threads": None}
ANSWER = CellAnswer(
    num_prompt_tokens=3,
    num_output_tokens=2,
    num_verify_steps=1,
    accepted_by_position=(1,),
    first_token_seconds=0.5,
    piece_seconds=(0.5, 0.75),
    piece_tokens=(1, 1),
    are_pieces_steps=True,
    digest="d",
)


def cell(number: int, name: str) -> Cell:
    method = Method(name=name, draft_tokens=0 if name == "none" else 3, concurrency=1)
    return Cell(
        prompts="a", round=number, method=method, seconds=1.0, cpu_seconds=0.5, energy_joules={}, answers=(ANSWER,)
    )


def begin(path: Path) -> None:
    with open_run_folder(path, SETTINGS, cells_a_round=2) as run:
        run.add([cell(0, "none"), cell(0, "p-eagle")])
        run.add([cell(1, "none")])


def test_an_interrupted_round_is_measured_again(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    with open_run_folder(tmp_path / "run", SETTINGS, cells_a_round=2) as run:
        assert run.rounds == {("a", 0)}
        assert run.cells == [cell(0, "none"), cell(0, "p-eagle")]
    assert len((tmp_path / "run" / CELLS_NAME).read_text().splitlines()) == 2


def test_a_round_with_failures_is_kept_and_measured_again_by_the_next_call(tmp_path: Path) -> None:
    failed = msgspec.structs.replace(cell(0, "p-eagle"), failures={"no answer": 1})
    with open_run_folder(tmp_path / "run", SETTINGS, cells_a_round=2) as run:
        run.add([cell(0, "none"), failed])
        assert run.rounds == {("a", 0)}
    with open_run_folder(tmp_path / "run", SETTINGS, cells_a_round=2) as run:
        assert run.rounds == set()


def test_half_a_line_at_the_end_is_what_a_kill_leaves(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    with (tmp_path / "run" / CELLS_NAME).open("a") as file:
        file.write('{"prompts": "a", "rou')
    with open_run_folder(tmp_path / "run", SETTINGS, cells_a_round=2) as run:
        assert run.rounds == {("a", 0)}


def test_a_damaged_line_before_the_end_is_refused(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    lines = (tmp_path / "run" / CELLS_NAME).read_text().splitlines()
    (tmp_path / "run" / CELLS_NAME).write_text("\n".join(["{}", *lines]))
    with (
        pytest.raises(UsageError, match="line 1 is no cell"),
        open_run_folder(tmp_path / "run", SETTINGS, cells_a_round=2),
    ):
        pass


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_tokens": 16, "threads": None}, "`max_tokens` = `8`, now it is `16`"),
        ({"max_tokens": 8, "threads": 1}, "`threads` = `null`, now it is `1`"),
        ({"max_tokens": 8, "threads": None, "seed": 1}, "`seed`"),
    ],
)
def test_a_changed_setting_is_refused_by_name(tmp_path: Path, settings: dict[str, object], message: str) -> None:
    begin(tmp_path / "run")
    with pytest.raises(UsageError, match=message), open_run_folder(tmp_path / "run", settings, cells_a_round=2):
        pass


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="no run of"), open_run_folder(tmp_path, SETTINGS, cells_a_round=2):
        pass
    assert not (tmp_path / SETTINGS_NAME).exists()


def test_two_processes_do_not_share_a_run(tmp_path: Path) -> None:
    with (
        open_run_folder(tmp_path / "run", SETTINGS, cells_a_round=2),
        pytest.raises(MachineError, match="another process"),
        open_run_folder(tmp_path / "run", SETTINGS, cells_a_round=2),
    ):
        pass


@pytest.mark.parametrize(
    "second",
    [
        cell(0, "none"),
        msgspec.structs.replace(cell(0, "p-eagle"), answers=()),
        msgspec.structs.replace(cell(0, "p-eagle"), answers=(ANSWER, ANSWER)),
        msgspec.structs.replace(cell(0, "p-eagle"), seconds=0.0),
    ],
)
def test_a_round_whose_cells_do_not_belong_together_is_measured_again(tmp_path: Path, second: Cell) -> None:
    with open_run_folder(tmp_path / "run", SETTINGS, cells_a_round=2) as run:
        run.add([cell(0, "none"), second])
    with open_run_folder(tmp_path / "run", SETTINGS, cells_a_round=2) as run:
        assert run.rounds == set()


@pytest.mark.parametrize("text", ["[1]", "null", "[" * 100_000, "7"])
def test_settings_of_another_shape_are_refused(tmp_path: Path, text: str) -> None:
    begin(tmp_path / "run")
    (tmp_path / "run" / SETTINGS_NAME).write_text(text)
    with pytest.raises(UsageError, match=SETTINGS_NAME), open_run_folder(tmp_path / "run", SETTINGS, cells_a_round=2):
        pass
