"""What would lose the scales after hours is refused before the target is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle_trt.calibrate import calibrate
from peagle_trt.errors import CheckpointError, MachineError, UsageError
from tests.support.models import save_drafter, save_target


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="the path is a folder, not a file"):
        calibrate(tmp_path / "no-target", "fp8", "mt-bench", tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(MachineError, match="something of another kind has that name"):
        calibrate(tmp_path / "no-target", "fp8", "mt-bench", tmp_path / "file" / "scales.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_one_file_for_target_and_drafter(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    output, same = tmp_path / "scales.safetensors", tmp_path / "link" / "scales.safetensors"
    with pytest.raises(UsageError, match="scales of the target and of the drafter"):
        calibrate(tmp_path, "fp8", "mt-bench", output, drafter_path=tmp_path, drafter_output_path=same)


@pytest.mark.parametrize("name", ["num_prompts", "answer_tokens", "draft_tokens"])
def test_counts_below_one(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=rf"--{name.replace('_', '-')} is 0; expected 1 or more"):
        calibrate(tmp_path, "fp8", "mt-bench", tmp_path / "scales.safetensors", **{name: 0})  # type: ignore[arg-type]


def test_a_head_of_another_target(tmp_path: Path) -> None:
    save_target(tmp_path / "target", num_hidden_layers=2, vocab_size=80)
    save_drafter(tmp_path / "head")
    with pytest.raises(CheckpointError):
        calibrate(
            tmp_path / "target",
            "fp8",
            "mt-bench",
            tmp_path / "s.safetensors",
            drafter_path=tmp_path / "head",
            drafter_output_path=tmp_path / "d.safetensors",
        )
