"""Quantization in float32 on any device: what a tensor is worth after it went through FP8 or NVFP4.

modelopt 0.47 runs block formats on a GPU only, and takes a backend from outside; `register_backend` gives it ours.
Letters: R rows, C columns, B blocks of a row.

Source: the formats' definitions (OCP Microscaling 1.0 for E2M1 and E4M3; NVFP4: 16 numbers a block, E4M3 block scales
over one float32 scale). Blocks whose scale falls below 1e-5 become zeros, as in modelopt's kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from peagle_trt.quant.calibration.recipes import LARGEST
from peagle_trt.readers.packed import NVFP4_BLOCK

if TYPE_CHECKING:
    from torch import Tensor

BACKEND = "peagle_trt_blocks"
_LARGEST_E4M3, _LARGEST_E2M1 = 448.0, 6.0
_SMALLEST_BLOCK_SCALE = 1e-5


def simulate_fp8(values: Tensor, largest: Tensor) -> Tensor:
    """Round to E4M3 numbers on one scale, in the values' type.

    Args:
        values: Any shape.
        largest: Magnitude that becomes 448, a scalar; what lies beyond is cut off.
    """
    scale = largest.float() / _LARGEST_E4M3
    return (_round_e4m3(values.float() / scale) * scale).to(values.dtype)


def simulate_nvfp4(values: Tensor, largest: Tensor) -> Tensor:
    """Round to NVFP4 numbers, block scales found in the values; in the values' type.

    Args:
        values: [..., C]; a last block that is not full is filled with zeros.
        largest: Magnitude that becomes 6 * 448, a scalar.
    """
    import torch
    import torch.nn.functional as functional

    columns = values.shape[-1]
    rows_RC = functional.pad(values.reshape(-1, columns).float(), (0, -columns % NVFP4_BLOCK))
    blocks_RB16 = rows_RC.view(len(rows_RC), -1, NVFP4_BLOCK)
    # A maximum of 0 leaves zeros whatever it is divided by.
    overall = (largest.float() / LARGEST["nvfp4"]).clamp(min=torch.finfo(torch.float32).tiny)
    peaks_RB1 = blocks_RB16.abs().amax(dim=-1, keepdim=True)
    scales_RB1 = _round_e4m3(peaks_RB1 / (_LARGEST_E2M1 * overall)) * overall
    is_too_small = scales_RB1 < _SMALLEST_BLOCK_SCALE
    rounded = _round_e2m1(blocks_RB16 / scales_RB1.masked_fill(is_too_small, 1.0))
    result = (rounded * scales_RB1).masked_fill(is_too_small, 0.0)
    return result.view(len(rows_RC), -1)[:, :columns].reshape(values.shape).to(values.dtype)


def register_backend() -> None:
    """Make `BACKEND` known to modelopt; a second call changes nothing."""
    from modelopt.torch.quantization.nn import register_quant_backend, unregister_quant_backend

    unregister_quant_backend(BACKEND)
    register_quant_backend(BACKEND, _simulate)


def _simulate(values: Tensor, quantizer: Any) -> Tensor:
    """The form in which modelopt calls a backend."""
    sizes = quantizer.block_sizes or {}
    is_nvfp4 = quantizer.num_bits == (2, 1) and sizes.get(-1) == NVFP4_BLOCK and sizes.get("scale_bits") == (4, 3)
    if not is_nvfp4:
        raise ValueError(f"blocks of {sizes} with {quantizer.num_bits} bits are not NVFP4")
    largest = quantizer.amax if quantizer.amax is not None else values.abs().amax()
    return simulate_nvfp4(values, largest.max())


def _round_e4m3(values: Tensor) -> Tensor:
    import torch

    # Older releases of torch turned what lies beyond the range into nan.
    return values.clamp(-_LARGEST_E4M3, _LARGEST_E4M3).to(torch.float8_e4m3fn).float()


def _round_e2m1(values: Tensor) -> Tensor:
    """Nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6 with the sign, ties to the even code, larger magnitudes to 6."""
    import torch

    # One bit of fraction: neighbours are half a power of two apart, and a half below 1.
    _, exponents = torch.frexp(values)
    steps = torch.ldexp(torch.full_like(values, 0.5), (exponents - 1).clamp(0, 2))
    # `round` takes ties to even, and a code is even where its number is an even count of steps.
    return ((values / steps).round() * steps).clamp(-_LARGEST_E2M1, _LARGEST_E2M1)
