"""What writes the tensors of a quantized checkpoint: each job reads some stored tensors, a piece at a time.

Letters: E experts, N rows and C columns of a matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from peagle_trt.quant.halves import to_bfloat16
from peagle_trt.quant.mxfp4 import mxfp4_to_nvfp4
from peagle_trt.quant.stored_floats import pieces, to_float32
from peagle_trt.quant.stream_codes import fp8_encoder, fp8_scale, nvfp4_codes, nvfp4_scale
from peagle_trt.readers.packed import MXFP4_BLOCK, NVFP4_BLOCK, unpack_matrix
from peagle_trt.readers.safetensors_file import ELEMENT_BYTES, entry_of
from peagle_trt.readers.stored_bytes import read_bytes, read_codes
from peagle_trt.readers.tensors import PackedTensor
from peagle_trt.spec import TensorSpec

Largest = Mapping[str, float]
"""Name of a group that shares a scale -> its largest magnitude; for MXFP4 the largest power of two."""
Piece = tuple[int, NDArray[np.uint8]]
"""Which of a job's outputs, and its next bytes."""
_COPY_BYTES = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A tensor to be written.

    Attributes:
        name: Its name in the checkpoint.
        dtype: Element type as safetensors spells it.
        shape: Dimensions, outermost first.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def length_bytes(self) -> int:
        """Bytes it takes."""
        return ELEMENT_BYTES[self.dtype] * math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Tensors that are made together.

    Attributes:
        outputs: The tensors.
        pieces: Yields their bytes, each tensor's in order, once the survey has found what is largest.
    """

    outputs: tuple[Output, ...]
    pieces: Callable[[Largest], Iterator[Piece]]

    @property
    def length_bytes(self) -> int:
        """Bytes of all its tensors."""
        return sum(output.length_bytes for output in self.outputs)


def copied(spec: TensorSpec, name: str, shape: tuple[int, ...]) -> Job:
    """A tensor's bytes as they are."""

    def run(_: Largest) -> Iterator[Piece]:
        place = spec.location
        assert place is not None, "only a computed tensor lies nowhere"
        for start in range(0, place.length_bytes, _COPY_BYTES):
            length = min(_COPY_BYTES, place.length_bytes - start)
            part = replace(place, offset_bytes=place.offset_bytes + start, length_bytes=length)
            yield 0, read_bytes(replace(spec, location=part))

    return Job(outputs=(Output(name=name, dtype=spec.dtype, shape=shape),), pieces=run)


def rounded(spec: TensorSpec, name: str, shape: tuple[int, ...]) -> Job:
    """A tensor of any floating type as bfloat16."""

    def run(_: Largest) -> Iterator[Piece]:
        for piece in pieces(spec):
            yield 0, to_bfloat16(to_float32(piece, spec.dtype)).view(np.uint8)

    return Job(outputs=(Output(name=name, dtype="BF16", shape=shape),), pieces=run)


def scalar(name: str, value: float) -> Job:
    """One float32 number."""
    raw = np.array(value, "<f4").reshape(1).view(np.uint8)
    return Job(outputs=(Output(name=name, dtype="F32", shape=()),), pieces=lambda _: iter([(0, raw)]))


def fp8_matrix(spec: TensorSpec, module: str, group: str) -> Job:
    """A matrix as E4M3 codes and one scale.

    Args:
        spec: The matrix.
        module: Name of its layer in the new checkpoint.
        group: Whose largest magnitude decides the scale.
    """
    return _fp8(spec, group, f"{module}.weight", f"{module}.weight_scale")


def fp8_stack(spec: TensorSpec, name: str) -> Job:
    """A stack of matrices [E, C, N] as codes in the same order, and one scale for all."""
    return _fp8(spec, name, name, f"{name}_weight_scale")


def nvfp4_matrix(spec: TensorSpec, module: str, group: str) -> Job:
    """A matrix as E2M1 codes, scales of blocks, and one scale for all."""
    rows, columns = spec.shape
    outputs = _nvfp4_outputs(f"{module}.weight", f"{module}.weight_scale", (rows,), columns)

    def run(largest: Largest) -> Iterator[Piece]:
        scale = nvfp4_scale(np.float32(largest[group]))
        for piece in pieces(spec):
            codes, scales = nvfp4_codes(piece, spec.dtype, scale)
            yield 0, codes
            yield 1, scales
        yield 2, _bytes_of(scale)

    return Job(outputs=outputs, pieces=run)


def nvfp4_stack(spec: TensorSpec, name: str) -> Job:
    """A stack of matrices [E, C, N] as NVFP4 in ModelOpt's layout for gpt-oss: C comes before N, one scale for all."""
    count, columns, rows = spec.shape

    def run(largest: Largest) -> Iterator[Piece]:
        scale = nvfp4_scale(np.float32(largest[name]))
        for expert in range(count):
            bits = np.concatenate(list(pieces(entry_of(spec, expert)))).reshape(columns, rows)
            codes, scales = nvfp4_codes(np.ascontiguousarray(bits.T).reshape(-1), spec.dtype, scale)
            yield 0, _turned(codes, rows)
            yield 1, _turned(scales, rows)
        yield 2, _bytes_of(scale)

    return Job(outputs=_nvfp4_stack_outputs(name, count, rows, columns), pieces=run)


def cast_stack(packed: PackedTensor, name: str) -> Job:
    """A stack of matrices in MXFP4 as the same numbers in NVFP4, in ModelOpt's layout for gpt-oss."""
    count, rows, blocks = packed.scales.shape

    def run(largest: Largest) -> Iterator[Piece]:
        scale = np.float32(1)
        for expert in range(count):
            codes, scales = (read_codes(entry_of(spec, expert)) for spec in (packed.codes, packed.scales))
            cast = mxfp4_to_nvfp4(packed.codes.name, codes, scales, largest=int(largest[name]))
            scale = np.float32(cast.global_scale)
            yield 0, _turned(cast.codes, rows)
            yield 1, _turned(cast.block_scales, rows)
        yield 2, _bytes_of(scale)

    return Job(outputs=_nvfp4_stack_outputs(name, count, rows, blocks * MXFP4_BLOCK), pieces=run)


def unpacked_stack(packed: PackedTensor, name: str) -> Job:
    """A stack of matrices in MXFP4 as bfloat16, [E, C, N]; every number is one of bfloat16's."""
    count, rows, blocks = packed.scales.shape
    columns = blocks * MXFP4_BLOCK

    def run(_: Largest) -> Iterator[Piece]:
        for expert in range(count):
            entry = replace(packed, codes=entry_of(packed.codes, expert), scales=entry_of(packed.scales, expert))
            numbers = to_bfloat16(unpack_matrix(entry, (rows, columns)))
            yield 0, np.ascontiguousarray(numbers.T).reshape(-1).view(np.uint8)

    return Job(outputs=(Output(name=name, dtype="BF16", shape=(count, columns, rows)),), pieces=run)


def _fp8(spec: TensorSpec, group: str, codes_name: str, scale_name: str) -> Job:
    outputs = (
        Output(name=codes_name, dtype="F8_E4M3", shape=spec.shape),
        Output(name=scale_name, dtype="F32", shape=()),
    )

    def run(largest: Largest) -> Iterator[Piece]:
        scale = fp8_scale(np.float32(largest[group]))
        encode = fp8_encoder(spec.dtype, scale)
        for piece in pieces(spec):
            yield 0, encode(piece)
        yield 1, _bytes_of(scale)

    return Job(outputs=outputs, pieces=run)


def _nvfp4_outputs(codes_name: str, stem: str, lead: tuple[int, ...], columns: int) -> tuple[Output, ...]:
    return (
        Output(name=codes_name, dtype="U8", shape=(*lead, columns // 2)),
        Output(name=stem, dtype="F8_E4M3", shape=(*lead, columns // NVFP4_BLOCK)),
        Output(name=f"{stem}_2", dtype="F32", shape=()),
    )


def _nvfp4_stack_outputs(name: str, count: int, rows: int, columns: int) -> tuple[Output, ...]:
    stem = f"{name}_weight_scale"
    return (
        Output(name=name, dtype="U8", shape=(count, columns // 2, rows)),
        Output(name=stem, dtype="F8_E4M3", shape=(count, columns // NVFP4_BLOCK, rows)),
        Output(name=f"{stem}_2", dtype="F32", shape=()),
    )


def _turned(codes: NDArray[np.uint8], rows: int) -> NDArray[np.uint8]:
    """Rows of codes as columns, flat."""
    return np.ascontiguousarray(codes.reshape(rows, -1).T).reshape(-1)


def _bytes_of(scale: np.float32) -> NDArray[np.uint8]:
    return np.array([scale], "<f4").view(np.uint8)
