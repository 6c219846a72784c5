"""A matrix of float32 as the tensors that a number format stores in its place.

`NAME` holds the codes. FP8 adds `NAME.scale`; NVFP4 adds `NAME.block_scales` and `NAME.global_scale`. Where activations
are quantized too, `NAME.input_scale` is their fixed scale, beside the one that the graph measures for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peagle_trt.errors import CheckpointError
from peagle_trt.quant.fp8 import quantize_fp8
from peagle_trt.quant.nvfp4 import Nvfp4Matrix, dequantize_nvfp4, global_scale, quantize_nvfp4
from peagle_trt.quant.registry import LinearScheme
from peagle_trt.readers.float_codes import decode_e4m3
from peagle_trt.readers.packed import NVFP4_BLOCK
from peagle_trt.readers.safetensors_file import load_tensor, map_codes
from peagle_trt.spec import TensorSpec

SCALE, BLOCK_SCALES, GLOBAL_SCALE, INPUT_SCALE = ".scale", ".block_scales", ".global_scale", ".input_scale"
"""Behind a tensor's name."""
UNCALIBRATED_INPUT_SCALE = 1.0
"""Rows are first divided by a scale of their own, so that the largest number of each is the format's largest.

Measured on SmolLM2-135M, 160 tokens, KL against bfloat16: FP8 0.106 without scales of rows, which cut off what lies
beyond 448, and 0.039 with them.
"""

_LINEARS = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
_EXPERTS = ("experts_gate_up_proj", "experts_down_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor to be written.

    Attributes:
        name: Stored name.
        dtype: F32, F16, BF16, I64, U8 or F8_E4M3.
        shape: Dimensions, outermost first.
        produce: Makes it; called once, just before it is written. BF16 comes as uint16 and F8_E4M3 as uint8, for numpy
            has no such types.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    produce: Callable[[], NDArray[np.generic]]


def is_packed_by(scheme: LinearScheme, name: str) -> bool:
    """Whether a scheme takes a stored tensor of the target."""
    stem = name.rpartition(".")[2]
    if scheme == "none" or not name.startswith("layers."):
        return False
    # TensorRT gathers no FP8 matrix by its number, so experts of FP8 could not be chosen.
    return stem in _LINEARS or (scheme == "nvfp4" and stem in _EXPERTS)


def pack(tensor: StoredTensor, scheme: LinearScheme) -> list[StoredTensor]:
    """The tensors that stand for one of float32.

    Args:
        tensor: [rows, columns], or a stack of such matrices.
        scheme: One that takes it.

    Raises:
        CheckpointError: Its rows cannot be cut into blocks.
    """
    return _pack_fp8(tensor) if scheme == "fp8" else _pack_nvfp4(tensor)


def unpack(stored: Mapping[str, TensorSpec], name: str) -> NDArray[np.generic] | None:
    """What a stored matrix that was packed is worth, in float32; None for a tensor that was not.

    Args:
        stored: The tensors of a build.
        name: One of them, without a suffix.
    """
    if f"{name}{SCALE}" in stored:
        scale = load_tensor(stored[f"{name}{SCALE}"]).astype(np.float32)
        return decode_e4m3(map_codes(stored[name])) * scale
    if f"{name}{BLOCK_SCALES}" not in stored:
        return None
    packed = Nvfp4Matrix(
        codes=map_codes(stored[name]),
        block_scales=map_codes(stored[f"{name}{BLOCK_SCALES}"]),
        global_scale=load_tensor(stored[f"{name}{GLOBAL_SCALE}"]).astype(np.float32),
    )
    return dequantize_nvfp4(packed)


def _pack_fp8(tensor: StoredTensor) -> list[StoredTensor]:
    def make() -> dict[str, NDArray[np.generic]]:
        packed = quantize_fp8(tensor.produce().astype(np.float32, copy=False))
        return {"": packed.codes, SCALE: packed.scale}

    pieces = _Pieces(make)
    return [
        pieces.tensor(tensor.name, "", "F8_E4M3", tensor.shape),
        pieces.tensor(tensor.name, SCALE, "F32", ()),
        _input_scale(tensor.name),
    ]


def _pack_nvfp4(tensor: StoredTensor) -> list[StoredTensor]:
    *lead, columns = tensor.shape
    if columns % NVFP4_BLOCK:
        raise CheckpointError(
            f"`{tensor.name}` has {columns} columns, which blocks of {NVFP4_BLOCK} do not divide",
            hint="use precision `fp8` or `bf16`",
        )

    def make() -> dict[str, NDArray[np.generic]]:
        values = tensor.produce().astype(np.float32, copy=False)
        packed = quantize_nvfp4(values, global_scale(values))
        return {"": packed.codes, BLOCK_SCALES: packed.block_scales, GLOBAL_SCALE: packed.global_scale}

    pieces = _Pieces(make)
    stored = [
        pieces.tensor(tensor.name, "", "U8", (*lead, columns // 2)),
        pieces.tensor(tensor.name, BLOCK_SCALES, "F8_E4M3", (*lead, columns // NVFP4_BLOCK)),
        pieces.tensor(tensor.name, GLOBAL_SCALE, "F32", ()),
    ]
    # A stack is of experts, whose activations are left alone.
    return [*stored, _input_scale(tensor.name)] if len(lead) == 1 else stored


def _input_scale(name: str) -> StoredTensor:
    return StoredTensor(
        name=f"{name}{INPUT_SCALE}",
        dtype="F32",
        shape=(),
        produce=lambda: np.array(UNCALIBRATED_INPUT_SCALE, np.float32),
    )


class _Pieces:
    """Several tensors that are made at once, when the first is asked for; each is let go as it is taken."""

    def __init__(self, make: Callable[[], dict[str, NDArray[np.generic]]]) -> None:
        self._make = make
        self._made: dict[str, NDArray[np.generic]] = {}

    def tensor(self, name: str, suffix: str, dtype: str, shape: tuple[int, ...]) -> StoredTensor:
        """A piece as a tensor to be written."""
        return StoredTensor(name=f"{name}{suffix}", dtype=dtype, shape=shape, produce=lambda: self._take(suffix))

    def _take(self, suffix: str) -> NDArray[np.generic]:
        if suffix not in self._made:
            self._made = self._make()
        return self._made.pop(suffix)
