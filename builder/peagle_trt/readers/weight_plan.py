"""How each of our tensors is put together from a checkpoint's, whatever form those are stored in.

Letters: N rows and C columns of a matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.accounting import ExpectedTensor
from peagle_trt.readers.packed import MXFP4_BLOCK, NVFP4_BLOCK, unpack_matrix
from peagle_trt.readers.quantized import Quantization
from peagle_trt.readers.safetensors_file import lazy_tensor
from peagle_trt.readers.tensors import LazyTensor, PackedTensor
from peagle_trt.spec import TensorSpec

_SCALE_TYPES = ("F32", "BF16", "F16")

Specs = Mapping[str, TensorSpec]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One of our tensors, planned.

    Attributes:
        expected: The checkpoint's tensors it is made of, by foreign name.
        build: Makes it once they are all known to be there.
    """

    expected: Mapping[str, ExpectedTensor]
    build: Callable[[Specs], LazyTensor]


def plain_part(name: str, shape: tuple[int, ...]) -> Part:
    """A tensor stored as it is."""
    return Part(
        expected={name: ExpectedTensor(shapes=(shape,))},
        build=lambda specs: lazy_tensor(specs[name]),
    )


def matrix_part(stem: str, shape: tuple[int, ...], found: Specs, quantization: Quantization | None) -> Part:
    """The weight of a linear layer, [N, C]: packed if the checkpoint holds scales for it, plain if not.

    Args:
        stem: Foreign name without `.weight`.
        shape: [N, C].
        found: The checkpoint's tensors.
        quantization: How packed weights are spelled, or None where there are none.

    Raises:
        CheckpointError: Rows cannot be cut into blocks.
    """
    if (
        quantization is None
        or quantization.spelling == "mxfp4"  # It packs stacks of experts alone.
        or not _is_packed(stem, found, _scale_name(quantization))
    ):
        return plain_part(f"{stem}.weight", shape)
    if quantization.spelling in ("fp8", "fp8_inverse"):
        return _fp8_part(stem, shape, found, quantization)
    return _nvfp4_part(stem, shape, is_reciprocal=quantization.spelling == "nvfp4_reciprocal")


def packed_spec(packed: PackedTensor, shape: tuple[int, ...]) -> TensorSpec:
    """What a packed tensor is once it is unpacked: its codes' bytes are not its own."""
    return replace(packed.codes, dtype=packed.form.upper(), shape=shape, location=None)


def require_blocks(name: str, columns: int, block: int) -> None:
    """Refuse rows that are no whole number of blocks.

    Raises:
        CheckpointError: They are not.
    """
    if columns % block:
        raise CheckpointError(
            f"tensor `{name}` is quantized in blocks of {block}, but its rows have {columns} values",
            hint="the configuration and the weights belong to different models",
        )


def mxfp4_shapes(name: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of MXFP4 blocks and scales for a stack of matrices.

    Raises:
        CheckpointError: Rows cannot be cut into blocks.
    """
    require_blocks(name, shape[-1], MXFP4_BLOCK)
    scales = (*shape[:-1], shape[-1] // MXFP4_BLOCK)
    return (*scales, MXFP4_BLOCK // 2), scales


def _scale_name(quantization: Quantization) -> str:
    return "weight_scale_inv" if quantization.spelling == "fp8_inverse" else "weight_scale"


def _is_packed(stem: str, found: Specs, scale_name: str) -> bool:
    """Whether either codes or scales are there: then both must be."""
    weight = found.get(f"{stem}.weight")
    has_codes = f"{stem}.weight_packed" in found or (weight is not None and weight.dtype in ("F8_E4M3", "U8"))
    return has_codes or f"{stem}.{scale_name}" in found


def _fp8_part(stem: str, shape: tuple[int, ...], found: Specs, quantization: Quantization) -> Part:
    codes, scales = f"{stem}.weight", f"{stem}.{_scale_name(quantization)}"
    block = quantization.block
    rows = shape[0]
    if block == (0, 0):
        shapes: tuple[tuple[int, ...], ...] = ((), (1,), (1, 1), (rows, 1), (rows,))
        if rows > 1 and scales in found and found[scales].shape[:1] == (rows,):
            block = (1, 0)
    else:
        shapes = (tuple(-(-size // width) for size, width in zip(shape, block, strict=True)),)
    expected = {
        codes: ExpectedTensor(shapes=(shape,), types=("F8_E4M3",)),
        scales: ExpectedTensor(shapes=shapes, types=_SCALE_TYPES),
    }

    def build(specs: Specs) -> LazyTensor:
        return _lazy(PackedTensor(form="fp8", codes=specs[codes], scales=specs[scales], block=block), shape)

    return Part(expected=expected, build=build)


def _nvfp4_part(stem: str, shape: tuple[int, ...], *, is_reciprocal: bool) -> Part:
    codes = f"{stem}.{'weight_packed' if is_reciprocal else 'weight'}"
    scales, overall = f"{stem}.weight_scale", f"{stem}.{'weight_global_scale' if is_reciprocal else 'weight_scale_2'}"
    rows, columns = shape
    require_blocks(codes, columns, NVFP4_BLOCK)
    expected = {
        codes: ExpectedTensor(shapes=((rows, columns // 2),), types=("U8",)),
        scales: ExpectedTensor(shapes=((rows, columns // NVFP4_BLOCK),), types=("F8_E4M3",)),
        overall: ExpectedTensor(shapes=((), (1,)), types=("F32",)),
    }

    def build(specs: Specs) -> LazyTensor:
        packed = PackedTensor(
            form="nvfp4",
            codes=specs[codes],
            scales=specs[scales],
            global_scale=specs[overall],
            divides_by_global=is_reciprocal,
        )
        return _lazy(packed, shape)

    return Part(expected=expected, build=build)


def _lazy(packed: PackedTensor, shape: tuple[int, ...]) -> LazyTensor:
    return LazyTensor(spec=packed_spec(packed, shape), load=lambda: unpack_matrix(packed, shape), packed=packed)
