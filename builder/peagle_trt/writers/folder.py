"""A checkpoint's folder: written beside its place, one piece of one tensor in memory at a time, and renamed last."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from peagle_trt.errors import UsageError
from peagle_trt.files import (
    locked_folder,
    naming_os_errors,
    remove_folder,
    remove_leftover,
    replacing,
    require_free_space,
    resolve_output,
    write_text,
)
from peagle_trt.writers.spelled import SpelledHead, SpelledTensor

CONFIG_NAME, WEIGHTS_NAME = "config.json", "model.safetensors"
# What a licence may ask to be kept with the weights.
_TEXT_STEMS = ("readme", "license", "licence", "notice", "copying", "use_policy")
_ALIGNMENT_BYTES = 8


def require_free_name(path: Path) -> Path:
    """The folder a head is to be written to, links followed.

    Raises:
        UsageError: Something is there already, or see `resolve_output`.
    """
    resolved = resolve_output(path)
    with naming_os_errors(path):
        if resolved.exists() and (not resolved.is_dir() or any(resolved.iterdir())):
            raise UsageError(f"`{path}` exists and is not an empty folder", hint="choose another folder with -o")
    return resolved


def write_folder(head: SpelledHead, source: Path, path: Path) -> int:
    """Write a head, with the texts that lie beside the one it comes from.

    Args:
        head: What to write.
        source: Folder the head was read from.
        path: Folder to make; see `require_free_name`.

    Returns:
        Bytes of its weights.

    Raises:
        MachineError: The disk is full, or the folder cannot be written; then nothing stands under `path`.
    """
    size_bytes = sum(tensor.length_bytes for tensor in head.tensors)
    require_free_space(path.parent, size_bytes)
    staging = path.with_name(f".{path.name}.partial")
    with locked_folder(staging, f"another process is writing `{path}`"):
        try:
            _fill(staging, head, source)
            # Another process may have finished between the first look and the lock.
            require_free_name(path)
            with naming_os_errors(path):
                if path.exists():
                    path.rmdir()
                staging.rename(path)
        finally:
            remove_folder(staging)
    return size_bytes


def _fill(staging: Path, head: SpelledHead, source: Path) -> None:
    """Write everything; what a killed run left is overwritten or removed."""
    for leftover in staging.iterdir():
        remove_leftover(leftover)
    with replacing(staging / WEIGHTS_NAME) as file:
        _write_weights(file, head.tensors)
    write_text(staging / CONFIG_NAME, json.dumps(head.document, indent=2) + "\n")
    _copy_texts(source, staging)


def _write_weights(file: BinaryIO, tensors: Sequence[SpelledTensor]) -> None:
    file.write(_header(tensors))
    for tensor in tensors:
        written = 0
        for piece in tensor.pieces():
            written += file.write(piece.data)
        assert written == tensor.length_bytes, f"{tensor.name}: {written} is not {tensor.length_bytes}"


def _header(tensors: Sequence[SpelledTensor]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        begin, end = end, end + tensor.length_bytes
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    # Spaces after the object are part of the header by the format's rule; they align the buffer.
    text += b" " * (-len(text) % _ALIGNMENT_BYTES)
    return len(text).to_bytes(8, "little") + text


def _copy_texts(source: Path, folder: Path) -> None:
    for path in sorted(source.iterdir()):
        if path.is_file() and path.name.lower().startswith(_TEXT_STEMS):
            with naming_os_errors(path):
                shutil.copyfile(path, folder / path.name)
