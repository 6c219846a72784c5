"""Writes a build's weights as safetensors files, one tensor in memory at a time, or leaves them in the checkpoint's."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from peagle_trt.files import replacing
from peagle_trt.quant.activation_scales import NO_SCALES, ActivationScales
from peagle_trt.quant.in_place import index_path, link_shards, read_index, referable, shards
from peagle_trt.quant.layout import (
    computed_drafter_tensors,
    drafter_layout,
    gathered_output_layer,
    kept_drafter_names,
    kept_in_place,
    stores_output_layer,
    target_layout,
)
from peagle_trt.quant.packing import StoredTensor
from peagle_trt.readers import DrafterCheckpoint, TargetCheckpoint
from peagle_trt.readers.safetensors_file import ELEMENT_BYTES, read_header
from peagle_trt.spec import TensorSpec

StoredWeights: TypeAlias = Mapping[str, TensorSpec]
"""Stored name -> type, shape and the bytes' place, which a graph may point into as ONNX external data."""

ALIGNMENT_BYTES = 64
"""Width of the widest vector load (AVX-512) and of a cache line: a mapped tensor can be read without a copy."""

# The format forbids holes, so a tensor of bytes fills them.
_PADDING = "padding."
_NUMPY_TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "U8": "u1", "F8_E4M3": "u1"}


def write_target_weights(
    target: TargetCheckpoint,
    path: Path,
    precision: str = "fp32",
    scales: ActivationScales = NO_SCALES,
    *,
    left_out: frozenset[str] = frozenset(),
) -> StoredWeights:
    """Write `engine/target.safetensors`; what the recipe leaves in place is linked beside it.

    Args:
        target: The target.
        path: The file.
        precision: A recipe that writes weights.
        scales: See `target_layout`.
        left_out: See `target_layout`.

    Raises:
        CheckpointError: The recipe cannot store a tensor, or the scales do not fit.
        MachineError: The disk is full, or the folder cannot be written.
    """
    layout = target_layout(target, precision, scales, left_out=left_out)
    kept = kept_references(target, precision)
    _write(path, layout)
    if kept:
        link_shards(kept, path)
    return open_stored(path)


def write_drafter_weights(
    drafter: DrafterCheckpoint,
    target: TargetCheckpoint,
    path: Path,
    precision: str = "fp32",
    scales: ActivationScales = NO_SCALES,
    *,
    left_out: frozenset[str] = frozenset(),
) -> StoredWeights:
    """Write `engine/drafter.safetensors`; rows of the target's output layer are copied where the drafter shares them.

    Arguments are those of `drafter_layout`.

    Raises:
        CheckpointError: The recipe cannot store a tensor, or the scales do not fit.
        MachineError: The disk is full, or the folder cannot be written.
    """
    return _write(path, drafter_layout(drafter, target, precision, scales, left_out=left_out))


def link_target_weights(target: TargetCheckpoint, path: Path) -> StoredWeights:
    """Leave the target's weights where they are: links of its shards beside `path`, and an index; no file at `path`.

    Raises:
        CheckpointError: The checkpoint stores a tensor in a way that no graph can read in place.
        MachineError: A shard can be neither linked nor copied.
    """
    link_shards(target_references(target), path)
    return open_stored(path)


def link_drafter_weights(drafter: DrafterCheckpoint, target: TargetCheckpoint, path: Path) -> StoredWeights:
    """Leave the drafter's weights where they are; only what has to be computed is written to `path`.

    Raises:
        CheckpointError: The checkpoint stores a tensor in a way that no graph can read in place.
        MachineError: A shard can be neither linked nor copied, or the disk is full.
    """
    _write(path, drafter_additions(drafter, target))
    link_shards(drafter_references(drafter), path)
    return open_stored(path)


def target_references(target: TargetCheckpoint) -> dict[str, TensorSpec]:
    """The places of the target's tensors.

    Raises:
        CheckpointError: One cannot be read in place.
    """
    return referable(target.weights, target.weights)


def kept_references(target: TargetCheckpoint, precision: str) -> dict[str, TensorSpec]:
    """The places of what a recipe that writes weights leaves in place all the same.

    Raises:
        CheckpointError: One cannot be read in place.
    """
    return referable(target.weights, kept_in_place(target, precision))


def drafter_references(drafter: DrafterCheckpoint) -> dict[str, TensorSpec]:
    """The places of the drafter's tensors that are used as they are.

    Raises:
        CheckpointError: One cannot be read in place.
    """
    own = ["lm_head"] if drafter.config.has_own_lm_head else []
    return referable(drafter.weights, [*kept_drafter_names(drafter), *own])


def drafter_additions(drafter: DrafterCheckpoint, target: TargetCheckpoint) -> list[StoredTensor]:
    """What a build that leaves weights in place writes all the same."""
    added = computed_drafter_tensors(drafter)
    if stores_output_layer(drafter) and not drafter.config.has_own_lm_head:
        added.append(gathered_output_layer(drafter, target))
    return added


def open_stored(path: Path) -> StoredWeights:
    """Describe what one of the writers wrote: a file, an index beside it, or both.

    Raises:
        CheckpointError: Neither is there, or one is damaged.
    """
    placed = read_index(path)
    if placed and not path.exists():
        return placed
    return {name: spec for name, spec in read_header(path).items() if not name.startswith(_PADDING)} | placed


def stored_files(path: Path) -> list[Path]:
    """The files that hold what `open_stored` describes, the index included."""
    index = [index_path(path)] if index_path(path).exists() else []
    return [*index, *shards(open_stored(path))]


def stored_bytes(layout: Sequence[StoredTensor]) -> int:
    """Size of the file that a layout becomes, within a kilobyte a tensor."""
    return sum(_length_bytes(tensor) for tensor in layout)


def largest_bytes(layout: Sequence[StoredTensor]) -> int:
    """Size of a layout's largest tensor: one is in memory at a time."""
    return max(map(_length_bytes, layout), default=0)


def _write(path: Path, layout: Sequence[StoredTensor]) -> StoredWeights:
    padded = _pad(layout)
    with replacing(path) as file:
        file.write(_header(padded))
        for tensor in padded:
            _write_tensor(file, tensor)
    return open_stored(path)


def _write_tensor(file: BinaryIO, tensor: StoredTensor) -> None:
    array = tensor.produce()
    assert array.shape == tensor.shape, f"{tensor.name}: {array.shape} is not {tensor.shape}"
    file.write(np.ascontiguousarray(array.astype(_NUMPY_TYPES[tensor.dtype], copy=False)).data)


def _pad(layout: Sequence[StoredTensor]) -> list[StoredTensor]:
    padded: list[StoredTensor] = []
    for tensor in layout:
        padded.append(tensor)
        missing = -_length_bytes(tensor) % ALIGNMENT_BYTES
        if missing:
            name = f"{_PADDING}{len(padded)}"
            padded.append(StoredTensor(name=name, dtype="U8", shape=(missing,), produce=_zeros(missing)))
    return padded


def _zeros(length: int) -> Callable[[], NDArray[np.generic]]:
    return lambda: np.zeros(length, np.uint8)


def _header(layout: Sequence[StoredTensor]) -> bytes:
    entries: dict[str, object] = {}
    end = 0
    for tensor in layout:
        begin, end = end, end + _length_bytes(tensor)
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    # Spaces after the object are part of the header by the format's rule; they align the buffer.
    text += b" " * (-(8 + len(text)) % ALIGNMENT_BYTES)
    return len(text).to_bytes(8, "little") + text


def _length_bytes(tensor: StoredTensor) -> int:
    length = ELEMENT_BYTES[tensor.dtype]
    for size in tensor.shape:
        length *= size
    return length
