"""What lies in a checkpoint's folder in place of a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.gguf_header import check_header
from peagle_trt.readers.json_file import read_object
from peagle_trt.readers.safetensors_file import read_header

# Source: git-lfs, `docs/spec.md`.
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d" * 32 + b"\nsize 4977222960\n"


@pytest.mark.parametrize("read", [read_header, read_object, check_header])
def test_a_pointer_of_git_lfs_is_named_with_the_remedy(tmp_path: Path, read: Callable[[Path], object]) -> None:
    path = tmp_path / "model-00001-of-00002.safetensors"
    path.write_bytes(POINTER)
    with pytest.raises(CheckpointError, match="is a pointer of git-lfs") as caught:
        read(path)
    assert str(path) in caught.value.message
    assert caught.value.hint == "fetch it: git lfs pull"
