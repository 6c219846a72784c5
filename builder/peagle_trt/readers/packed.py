"""Packed tensors back to float32: codes times scales.

Source: vLLM and compressed-tensors for what multiplies what; OCP Microscaling Formats v1.0 for mxfp4.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.float_codes import decode_e2m1, decode_e4m3, decode_e8m0
from peagle_trt.readers.safetensors_file import entry_of, load_tensor, map_codes
from peagle_trt.readers.tensors import PackedTensor
from peagle_trt.spec import TensorSpec

MXFP4_BLOCK = 32
NVFP4_BLOCK = 16
"""Values of a row that share a scale."""


def unpack_matrix(packed: PackedTensor, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """One matrix.

    Args:
        packed: How it is stored.
        shape: [rows, columns] of the result.

    Raises:
        CheckpointError: A scale is nan, infinite or negative.
    """
    codes = map_codes(packed.codes)
    match packed.form:
        case "mxfp4":
            values = decode_e2m1(codes)
            scales = _require_sound(packed.scales, decode_e8m0(map_codes(packed.scales)))
            return (values * scales[..., None]).reshape(shape)
        case "nvfp4":
            if packed.is_transposed:
                codes = codes.T
            blocks = decode_e2m1(codes).reshape(shape[0], -1, NVFP4_BLOCK)
            return (blocks * _nvfp4_scales(packed)[..., None]).reshape(shape)
        case "fp8":
            matrix = decode_e4m3(codes)
            _scale_blocks(matrix, _require_sound(packed.scales, _float_scales(packed.scales)), packed.block)
            return np.ascontiguousarray(matrix.T) if packed.is_transposed else matrix


def unpack_stack(packed: PackedTensor, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """A stack of matrices along the first axis, one after another, so that one is in memory besides the result."""
    stack = np.empty(shape, np.float32)
    for index in range(shape[0]):
        stack[index] = unpack_matrix(_entry(packed, index), shape[1:])
    return stack


def _entry(packed: PackedTensor, index: int) -> PackedTensor:
    """One matrix of a stack; a scale of all belongs to each."""
    count = packed.codes.shape[0]
    scales = packed.scales
    if scales.shape[:1] == (count,):
        scales = entry_of(scales, index)
    return replace(packed, codes=entry_of(packed.codes, index), scales=scales)


def _nvfp4_scales(packed: PackedTensor) -> NDArray[np.float32]:
    """What every block is multiplied by, [rows, blocks]; the product is formed first, in float32."""
    scales = decode_e4m3(map_codes(packed.scales))
    if packed.is_transposed:
        scales = scales.T
    assert packed.global_scale is not None, "nvfp4 has two levels of scales"
    overall = _require_sound(packed.global_scale, _float_scales(packed.global_scale)).reshape(())
    if packed.divides_by_global:
        with np.errstate(divide="ignore"):
            overall = _require_sound(packed.global_scale, np.float32(1) / overall)
    return _require_sound(packed.scales, scales) * overall


def _float_scales(spec: TensorSpec) -> NDArray[np.float32]:
    scales: NDArray[np.float32] = load_tensor(spec).astype(np.float32)
    return scales


def _scale_blocks(matrix: NDArray[np.float32], scales: NDArray[np.float32], block: tuple[int, int]) -> None:
    """Multiply every block of a matrix by its scale, in place; the last blocks of a row or column may be cut short."""
    rows, columns = (size or whole for size, whole in zip(block, matrix.shape, strict=True))
    for index, row_scales in enumerate(scales.reshape(-1, -(-matrix.shape[1] // columns))):
        matrix[index * rows : (index + 1) * rows] *= np.repeat(row_scales, columns)[: matrix.shape[1]]


def _require_sound(spec: TensorSpec, scales: NDArray[np.float32]) -> NDArray[np.float32]:
    # Zero is the scale of nothing but zeros.
    is_sound = np.isfinite(scales) & (scales >= 0)
    if not is_sound.all():
        where = f"`{spec.location.path}`: " if spec.location else ""
        raise CheckpointError(
            f"{where}scales `{spec.name}` must be finite and not negative; {np.count_nonzero(~is_sound):,} are not, "
            f"the first is {scales[~is_sound][0]}",
            hint="the checkpoint is damaged; fetch it again",
        )
    return scales
