"""The safetensors format: a header that is checked in full before any byte of a tensor is believed.

Source: the format's description in the safetensors project's README: 8 bytes little-endian header length, a JSON header
of name -> {dtype, shape, data_offsets}, then one buffer without holes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.foreign_file import open_foreign
from peagle_trt.readers.json_file import parse_object
from peagle_trt.readers.tensors import LazyTensor
from peagle_trt.spec import TensorLocation, TensorSpec

ELEMENT_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
_NUMPY_TYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "F16": "<f2", "BF16": "<u2", "U32": "<u4",
    "I32": "<i4", "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8",
}  # fmt: skip
_MAX_HEADER_BYTES = 100_000_000  # The limit of the format's own reader.
_MAX_BYTES = (1 << 63) - 1  # What an offset in a file can be; every product below stays a small number.
_MAX_DIMENSIONS = 32  # numpy's limit before version 2.
_MAX_NAME_CHARACTERS = 1000
_AGAIN = "the file is damaged; fetch it again"


def read_header(path: Path) -> dict[str, TensorSpec]:
    """Describe every tensor of a file.

    Raises:
        CheckpointError: The file is absent, truncated, or its header contradicts itself or the file's size.
    """
    with open_foreign(path) as file:
        size_bytes = path.stat().st_size
        prefix = file.read(8)
        header_bytes = int.from_bytes(prefix, "little")
        if len(prefix) < 8:
            raise CheckpointError(f"`{path}` has {len(prefix)} bytes, too few for a safetensors file", hint=_AGAIN)
        if header_bytes > min(size_bytes - 8, _MAX_HEADER_BYTES):
            raise CheckpointError(
                f"`{path}`: the header claims {header_bytes:,} bytes, but the file has {size_bytes:,}", hint=_AGAIN
            )
        text = file.read(header_bytes)
    try:
        header = parse_object(text)
    except ValueError as error:
        raise CheckpointError(f"`{path}`: the header is not a JSON object: {error}", hint=_AGAIN) from error
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError(f"`{path}`: `__metadata__` is no object of strings", hint=_AGAIN)
    start = 8 + header_bytes
    specs = {name: _read_entry(path, name, entry, start) for name, entry in header.items()}
    _check_extents(path, specs, start, size_bytes)
    return specs


def lazy_tensor(spec: TensorSpec) -> LazyTensor:
    """A tensor of a safetensors file that is read when asked for."""
    return LazyTensor(spec=spec, load=lambda: load_tensor(spec))


def load_tensor(spec: TensorSpec) -> NDArray[np.generic]:
    """Read one tensor; every floating type becomes float32, integers keep their type.

    Raises:
        CheckpointError: The type is one that only a quantized checkpoint has.
    """
    if spec.dtype not in _NUMPY_TYPES:
        raise CheckpointError(
            f"tensor `{spec.name}` has type {spec.dtype}, which cannot be read as numbers on its own",
            hint="use an unquantized checkpoint (F32, F16 or BF16)",
        )
    raw = map_bytes(spec).view(_NUMPY_TYPES[spec.dtype]).reshape(spec.shape)
    if spec.dtype == "BF16":
        return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if spec.dtype in ("F16", "F32", "F64"):
        return raw.astype(np.float32)
    return np.array(raw)


def entry_of(spec: TensorSpec, index: int) -> TensorSpec:
    """One entry along the first axis of a tensor, as a tensor of its own."""
    location = spec.location
    assert location is not None, "only a computed tensor lies nowhere"
    length_bytes = location.length_bytes // spec.shape[0]
    place = replace(location, offset_bytes=location.offset_bytes + index * length_bytes, length_bytes=length_bytes)
    return replace(spec, shape=spec.shape[1:], location=place)


def map_codes(spec: TensorSpec) -> NDArray[np.uint8]:
    """The stored bytes of a tensor of one-byte codes, in its shape."""
    return map_bytes(spec).reshape(spec.shape)


def map_bytes(spec: TensorSpec) -> NDArray[np.uint8]:
    """The stored bytes of a tensor, memory-mapped and read-only."""
    location = spec.location
    assert location is not None, "only a computed tensor lies nowhere"
    if location.length_bytes == 0:
        return np.empty(0, np.uint8)
    # asarray drops the memmap subclass, whose results would keep it.
    return np.asarray(np.memmap(location.path, np.uint8, "r", location.offset_bytes, (location.length_bytes,)))


def raw_rows(spec: TensorSpec) -> NDArray[np.generic]:
    """A tensor as it is stored, memory-mapped and read-only; BF16 comes as uint16, for numpy has no such type."""
    return map_bytes(spec).view(_NUMPY_TYPES[spec.dtype]).reshape(spec.shape)


def _read_entry(path: Path, name: str, entry: object, start: int) -> TensorSpec:
    if not name.isprintable() or len(name) > _MAX_NAME_CHARACTERS:
        raise CheckpointError(f"`{path}`: `{name}` is no name of a tensor", hint=_AGAIN)
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise CheckpointError(f"`{path}`: tensor `{name}` lacks dtype, shape or data_offsets", hint=_AGAIN)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ELEMENT_BYTES:
        raise CheckpointError(f"`{path}`: tensor `{name}` has the unknown type `{dtype}`")
    # The many dimensions first: what they hold would be looked at and shown one by one.
    if isinstance(shape, list) and len(shape) > _MAX_DIMENSIONS:
        raise CheckpointError(
            f"`{path}`: tensor `{name}` has {len(shape):,} dimensions, more than {_MAX_DIMENSIONS}", hint=_AGAIN
        )
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(
            f"`{path}`: tensor `{name}` has shape `{shape}` and offsets `{offsets}`, which make no sense", hint=_AGAIN
        )
    length_bytes, expected_bytes = offsets[1] - offsets[0], _count_bytes(dtype, shape)
    if expected_bytes is None:
        raise CheckpointError(f"`{path}`: tensor `{name}` of shape {shape} would be larger than any file", hint=_AGAIN)
    if length_bytes != expected_bytes:
        raise CheckpointError(
            f"`{path}`: tensor `{name}` occupies {length_bytes:,} bytes, but {dtype} {shape} takes {expected_bytes:,}",
            hint=_AGAIN,
        )
    location = TensorLocation(path=path, offset_bytes=start + offsets[0], length_bytes=length_bytes)
    return TensorSpec(name=name, dtype=dtype, shape=tuple(shape), location=location)


def _count_bytes(dtype: str, shape: list[int]) -> int | None:
    """Bytes of a tensor, or None where they overflow, even if a dimension of 0 would make them none."""
    count_bytes, is_empty = ELEMENT_BYTES[dtype], False
    # Plain integers: numpy's would overflow on a forged shape.
    for size in shape:
        count_bytes *= size or 1
        is_empty |= size == 0
    if count_bytes > _MAX_BYTES:
        return None
    return 0 if is_empty else count_bytes


def _are_sizes(values: object) -> bool:
    return isinstance(values, list) and all(
        isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_BYTES for value in values
    )


def _check_extents(path: Path, specs: Mapping[str, TensorSpec], start: int, size_bytes: int) -> None:
    extents = sorted(
        (spec.location.offset_bytes, spec.location.offset_bytes + spec.location.length_bytes, name)
        for name, spec in specs.items()
        if spec.location is not None
    )
    end, previous = start, ""
    for begin, stop, name in extents:
        if stop > size_bytes:
            raise CheckpointError(
                f"`{path}` is truncated: tensor `{name}` ends at byte {stop:,}, the file has {size_bytes:,}",
                hint=_AGAIN,
            )
        if begin < end:
            raise CheckpointError(f"`{path}`: tensors `{previous}` and `{name}` overlap", hint=_AGAIN)
        if begin > end:
            raise CheckpointError(
                f"`{path}`: {begin - end:,} bytes before tensor `{name}` belong to nothing", hint=_AGAIN
            )
        end, previous = stop, name
    if end != size_bytes:
        raise CheckpointError(
            f"`{path}`: {size_bytes - end:,} bytes after the last tensor belong to nothing", hint=_AGAIN
        )
