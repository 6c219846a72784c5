"""Folders of owners that are gone, and of owners that are not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from peagle_trt.deploy.leftovers import owner_prefix, sweep_stale_folders
from peagle_trt.deploy.serving import _temporary_folder
from peagle_trt.errors import PeagleError


def dead_process_number() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_only_what_a_dead_owner_left_is_removed(tmp_path: Path) -> None:
    gone = dead_process_number()
    stale = [tmp_path / f"peagle-{gone}-abc", tmp_path / f".peagle-{gone}-xyz"]
    kept = [tmp_path / f"{owner_prefix()}abc", tmp_path / "peagle-notes", tmp_path / "other"]
    for folder in (*stale, *kept):
        (folder / "backends").mkdir(parents=True)
    assert sweep_stale_folders(tmp_path) == 2
    assert [folder.exists() for folder in (*stale, *kept)] == [False, False, True, True, True]


def test_the_log_of_a_failure_stays_where_the_error_points() -> None:
    with pytest.raises(PeagleError), _temporary_folder() as folder:
        (folder / "tritonserver.log").write_text("why")
        raise PeagleError("the server ended by itself")
    assert (folder / "tritonserver.log").read_text() == "why"
    (folder / "tritonserver.log").unlink()
    folder.rmdir()


def test_the_log_of_an_orderly_stop_goes() -> None:
    with _temporary_folder() as folder:
        (folder / "tritonserver.log").write_text("fine")
    assert not folder.exists()
