"""Bytes of checkpoints are read the same way round the page cache and through it, and short files are errors."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from peagle_trt.errors import CheckpointError
from peagle_trt.readers import stored_bytes
from peagle_trt.readers.safetensors_file import map_bytes, read_header
from peagle_trt.readers.stored_bytes import read_bytes, reading_of
from peagle_trt.spec import TensorSpec

NO_MEMORY_HOLDS_IT = 1 << 62


def write_tensors(path: Path) -> dict[str, TensorSpec]:
    """Tensors that begin and end anywhere among blocks, the last at the end of the file."""
    torch.manual_seed(0)
    sizes = {"a": 1, "b": 4093, "c": 4096, "d": 100_000, "e": 0, "f": 7}
    save_file({name: torch.randint(0, 256, (size,), dtype=torch.uint8) for name, size in sizes.items()}, path)
    return read_header(path)


@pytest.mark.parametrize("num_bytes", [0, NO_MEMORY_HOLDS_IT])
def test_bytes_are_those_of_the_file(tmp_path: Path, num_bytes: int) -> None:
    specs = write_tensors(tmp_path / "w.safetensors")
    with reading_of(num_bytes):
        for spec in specs.values():
            np.testing.assert_array_equal(read_bytes(spec), map_bytes(spec))


def test_only_what_outgrows_memory_is_read_directly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, asked = write_tensors(tmp_path / "w.safetensors")["d"], []
    plain = os.open
    monkeypatch.setattr(stored_bytes.os, "open", lambda path, flags: asked.append(flags) or plain(path, flags))
    with reading_of(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2):
        read_bytes(spec)
    assert asked == []
    with reading_of(NO_MEMORY_HOLDS_IT):
        read_bytes(spec)
    assert asked == [os.O_RDONLY | os.O_DIRECT]
    read_bytes(spec)
    assert len(asked) == 1


@pytest.mark.parametrize("call", ["open", "preadv"])
def test_a_file_system_without_direct_reading_is_read_through_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    spec = write_tensors(tmp_path / "w.safetensors")["d"]
    monkeypatch.setattr(stored_bytes.os, call, refuse)
    with reading_of(NO_MEMORY_HOLDS_IT):
        np.testing.assert_array_equal(read_bytes(spec), map_bytes(spec))


@pytest.mark.parametrize("num_bytes", [0, NO_MEMORY_HOLDS_IT])
def test_a_file_that_is_cut_short_meanwhile_is_an_error_and_no_signal(tmp_path: Path, num_bytes: int) -> None:
    path = tmp_path / "w.safetensors"
    spec = write_tensors(path)["d"]
    os.truncate(path, path.stat().st_size - 50_000)
    with reading_of(num_bytes), pytest.raises(CheckpointError, match=r"ends within tensor `d`: it was cut short"):
        read_bytes(spec)
    path.unlink()
    with reading_of(num_bytes), pytest.raises(CheckpointError, match=r"cannot read .*w.safetensors"):
        read_bytes(spec)
