"""Where a converted head lands: one process at a time, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle_trt.errors import CheckpointError, MachineError, UsageError
from peagle_trt.files import locked_folder
from peagle_trt.readers import read_head
from peagle_trt.writers import convert_head
from tests.support.checkpoints import edit_config
from tests.support.models import save_drafter


@pytest.fixture
def head(tmp_path: Path) -> Path:
    save_drafter(tmp_path / "head")
    return tmp_path / "head"


def test_two_conversions_into_one_folder_do_not_mix(head: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    with (
        locked_folder(tmp_path / ".out.partial", "busy"),
        pytest.raises(MachineError, match="another process is writing"),
    ):
        convert_head(read_head(head), None, "vllm", output)
    assert not output.exists()
    convert_head(read_head(head), None, "vllm", output)
    with pytest.raises(UsageError, match="is not an empty folder"):
        convert_head(read_head(head), None, "vllm", output)


def test_what_a_killed_conversion_left_is_not_taken_along(head: Path, tmp_path: Path) -> None:
    staging = tmp_path / ".out.partial"
    staging.mkdir()
    (staging / "README.md").write_text("of another head")
    convert_head(read_head(head), None, "vllm", tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]
    assert not staging.exists()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"mask_token_id": 4000}, "mask token 4000 is outside its vocabulary"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 2, 1]}}, "not distinct and ascending"),
    ],
)
def test_a_head_of_no_use_to_anybody_is_not_written(
    head: Path, tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    edit_config(head, **change)
    with pytest.raises(CheckpointError, match=reason):
        convert_head(read_head(head), None, "vllm", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_failed_work_left_empty_is_taken_away(tmp_path: Path) -> None:
    with pytest.raises(UsageError), locked_folder(tmp_path / "made" / "new", "busy"):
        raise UsageError("no")
    assert not (tmp_path / "made" / "new").exists()


def test_what_was_there_before_or_holds_something_stays_after_failed_work(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError), locked_folder(tmp_path / "empty", "busy"):
        raise UsageError("no")
    with pytest.raises(UsageError), locked_folder(tmp_path / "filled", "busy"):
        (tmp_path / "filled" / "shard").touch()
        raise UsageError("no")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["empty", "filled", "shard"]
