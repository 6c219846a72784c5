"""A run that was stopped goes on where it was, and ends with the bytes of one that was not."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from peagle_trt.errors import MachineError, UsageError
from peagle_trt.files import locked_folder, sha256_of
from peagle_trt.quant.layer_recipes import load_layer_recipe
from peagle_trt.readers import read_target
from peagle_trt.writers.quantized import QuantizedCheckpoint, export, quantize_target

SHARD_BYTES = 20_000
KILLED = """
import os, signal, sys
from pathlib import Path
from peagle_trt.quant.layer_recipes import load_layer_recipe
from peagle_trt.readers import read_target
from peagle_trt.writers.quantized import export, quantize_target
plain, calls = export.write_shard, []
def write(path, jobs, largest):
    calls.append(path)
    if len(calls) == 3:
        # In the middle of a shard: its staging file is there, its name is not.
        path.with_name(f".{path.name}.partial").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)
    plain(path, jobs, largest)
export.write_shard = write
quantize_target(
    read_target(Path(sys.argv[1])), load_layer_recipe("nvfp4"), Path(sys.argv[2]), max_shard_bytes=int(sys.argv[3])
)
"""


def quantize(source: Path, output: Path, recipe: str = "nvfp4") -> QuantizedCheckpoint:
    return quantize_target(read_target(source), load_layer_recipe(recipe), output, max_shard_bytes=SHARD_BYTES)


def hashes(folder: Path) -> dict[str, str]:
    return {path.name: sha256_of(path) for path in sorted(folder.iterdir())}


def kill_one(source: Path, output: Path) -> None:
    words = [sys.executable, "-c", KILLED, str(source), str(output), str(SHARD_BYTES)]
    ended = subprocess.run(words, check=False, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    assert ended.returncode == -signal.SIGKILL


@pytest.fixture
def killed(sources: Path, tmp_path: Path) -> Path:
    kill_one(sources / "llama", tmp_path / "out")
    return tmp_path


def test_a_killed_run_leaves_nothing_that_looks_finished(killed: Path) -> None:
    assert not (killed / "out").exists()
    names = {path.name for path in (killed / ".out.partial").iterdir()}
    assert not {"config.json", "model.safetensors.index.json"} & names


def test_a_killed_run_goes_on(sources: Path, killed: Path) -> None:
    quantize(sources / "llama", killed / "whole")
    assert quantize(sources / "llama", killed / "out").resumed_shards == 2
    assert hashes(killed / "out") == hashes(killed / "whole")
    assert sorted(path.name for path in killed.iterdir()) == ["out", "whole"]


def test_a_finished_shard_that_was_damaged_is_written_again(sources: Path, killed: Path) -> None:
    shard = sorted((killed / ".out.partial").glob("model-*.safetensors"))[0]
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 1
    shard.write_bytes(raw)
    quantize(sources / "llama", killed / "whole")
    assert quantize(sources / "llama", killed / "out").resumed_shards == 1
    assert hashes(killed / "out") == hashes(killed / "whole")


def test_another_recipe_starts_afresh(sources: Path, killed: Path) -> None:
    quantize(sources / "llama", killed / "whole", "fp8")
    assert quantize(sources / "llama", killed / "out", "fp8").resumed_shards == 0
    assert hashes(killed / "out") == hashes(killed / "whole")


def test_a_full_disk_keeps_what_is_finished(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, calls = export.write_shard, list[Path]()

    def fill(path: Path, *rest: object) -> None:
        calls.append(path)
        if len(calls) == 2:
            raise MachineError("no space is left on the disk")
        plain(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(export, "write_shard", fill)
    with pytest.raises(MachineError):
        quantize(sources / "llama", tmp_path / "out")
    monkeypatch.undo()
    assert quantize(sources / "llama", tmp_path / "out").resumed_shards == 1


def test_a_folder_in_use_is_refused_first(sources: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(UsageError, match="is not an empty folder"):
        quantize(sources / "llama", tmp_path / "out")


def test_a_journal_of_other_groups_counts_as_none(sources: Path, killed: Path) -> None:
    journal = killed / ".out.partial" / "journal.json"
    edited = msgspec.json.decode(journal.read_bytes()) | {"largest": {"x": 1.0}}
    journal.write_bytes(msgspec.json.encode(edited))
    quantize(sources / "llama", killed / "whole")
    assert quantize(sources / "llama", killed / "out").resumed_shards == 0
    assert hashes(killed / "out") == hashes(killed / "whole")


@pytest.mark.parametrize("name", ["journal.json", "model-00001-of-00009.safetensors"])
def test_folders_among_what_is_left_are_removed(sources: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / ".out.partial" / name / "inner").mkdir(parents=True)
    assert quantize(sources / "llama", tmp_path / "out").resumed_shards == 0


def test_what_is_finished_waits_when_the_name_is_taken_meanwhile(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = export.write_index

    def take(*arguments: object) -> None:
        plain(*arguments)  # type: ignore[arg-type]
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "mine").touch()

    monkeypatch.setattr(export, "write_index", take)
    with pytest.raises(UsageError, match="is not an empty folder"):
        quantize(sources / "llama", tmp_path / "out")
    monkeypatch.undo()
    (tmp_path / "out" / "mine").unlink()
    assert quantize(sources / "llama", tmp_path / "out").resumed_shards > 2
    assert not (tmp_path / "out" / "journal.json").exists()


def test_places_that_no_rename_can_replace_are_refused_first(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(UsageError, match="leads nowhere"):
        quantize(sources / "llama", tmp_path / "circle")
    monkeypatch.setattr(Path, "is_mount", lambda self: self == tmp_path / "disk")
    with pytest.raises(UsageError, match="a file system is mounted on"):
        quantize(sources / "llama", tmp_path / "disk")
    assert not (tmp_path / ".disk.partial").exists()


def test_a_parent_that_cannot_be_made_is_named(sources: Path) -> None:
    with pytest.raises(MachineError, match="a part of the path does not exist"):
        quantize(sources / "llama", Path("/proc/no-such-process/out"))


def test_a_lock_on_a_folder_that_was_renamed_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = fcntl.flock

    def rename(descriptor: int, operation: int) -> None:
        plain(descriptor, operation)
        (tmp_path / "staging").rename(tmp_path / "finished")

    monkeypatch.setattr(fcntl, "flock", rename)
    with pytest.raises(MachineError, match="busy"), locked_folder(tmp_path / "staging", "busy"):
        pytest.fail("nobody may work in it")
