"""A target's weights on their way into torch: one tensor at a time, counted before the first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from peagle_trt.errors import CheckpointError, MachineError
from peagle_trt.machine import probe_machine
from peagle_trt.readers.safetensors_file import map_codes

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import Tensor

    from peagle_trt.readers.tensors import LazyTensor, PackedTensor, Weights

FLOAT32_BYTES = 4
_E8M0_NAN = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """A projection in the type of the products."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, rows: Tensor) -> Tensor:
        """Rows of the same type through it."""
        import torch.nn.functional as functional

        return functional.linear(rows, self.weight, self.bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightLoader:
    """Reads tensors by our names.

    Attributes:
        weights: The checkpoint's.
        compute_dtype: Type of the products.
        device: Where they go.
    """

    weights: Weights
    compute_dtype: torch.dtype
    device: torch.device

    def exact(self, name: str) -> Tensor:
        """A tensor in float32."""
        import torch

        return torch.from_numpy(self.weights.load(name)).to(self.device, torch.float32)

    def optional(self, name: str) -> Tensor | None:
        """A tensor in float32, or None where the model has none of that name."""
        return self.exact(name) if name in self.weights else None

    def linear(self, prefix: str, *names: str) -> Linear:
        """Projections that read the same, one below the other."""
        import torch

        matrices = [self.exact(f"{prefix}{name}_proj").to(self.compute_dtype) for name in names]
        biases = [self.optional(f"{prefix}{name}_bias") for name in names]
        found = [bias.to(self.compute_dtype) for bias in biases if bias is not None]
        assert len(found) in (0, len(names)), "projections side by side have biases or none has"
        return Linear(weight=torch.cat(matrices), bias=torch.cat(found) if found else None)

    def stack(self, name: str) -> DenseStack | PackedStack:
        """The matrices of all experts; those in MXFP4 stay as they are."""
        import torch

        packed = self.weights[name].packed
        if packed is None or packed.form != "mxfp4":
            return DenseStack(matrices=self.exact(name).to(self.compute_dtype))
        # Copied: torch cannot hold memory that may not be written.
        codes, scales = (torch.from_numpy(map_codes(spec).copy()) for spec in (packed.codes, packed.scales))
        if (scales == _E8M0_NAN).any():
            raise CheckpointError(
                f"`{packed.scales.name}` has a scale that is no number", hint="the checkpoint is damaged"
            )
        return PackedStack(codes=codes.to(self.device), scales=scales.to(self.device), compute_dtype=self.compute_dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseStack:
    """Matrices of experts, [E, rows, columns]."""

    matrices: Tensor

    def matrix(self, expert: int) -> Tensor:
        """One of them, [rows, columns]."""
        return self.matrices[expert]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedStack:
    """Matrices of experts in MXFP4, widened one at a time, when a token is sent there.

    Attributes:
        codes: [E, rows, columns / 32, 16] uint8, two E2M1 codes a byte, the low nibble first.
        scales: [E, rows, columns / 32] uint8, E8M0.
        compute_dtype: What they are widened to; every value is exact in bfloat16.

    Source: OCP Microscaling Formats v1.0.
    """

    codes: Tensor
    scales: Tensor
    compute_dtype: torch.dtype

    def matrix(self, expert: int) -> Tensor:
        """One of them, [rows, columns]."""
        import torch

        positive = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]).to(self.codes.device)
        table = torch.cat([positive, -positive])
        codes = self.codes[expert]
        values = table[torch.stack([codes & 15, codes >> 4], dim=-1).int()].flatten(-2)
        powers = self.scales[expert].int() - 127
        return torch.ldexp(values, powers[..., None]).flatten(1).to(self.compute_dtype)


def require_memory(path: Path, weights: Weights, compute_dtype: torch.dtype, device: torch.device) -> None:
    """Refuse a target that does not fit, before the first tensor is read.

    Raises:
        MachineError: It does not.
    """
    needed = sum(_working_bytes(name, tensor, compute_dtype.itemsize) for name, tensor in weights.items())
    available = _available_bytes(device)
    if needed > available:
        raise MachineError(
            f"`{path}` takes {needed:,} bytes with products in {str(compute_dtype).removeprefix('torch.')}, and "
            f"`{device}` has {available:,}",
            hint="take a machine with more memory, a smaller target, or --compute-dtype bfloat16, which takes half",
        )


def _working_bytes(name: str, tensor: LazyTensor, compute_bytes: int) -> int:
    packed: PackedTensor | None = tensor.packed
    if packed is not None and packed.form == "mxfp4" and "experts" in name:
        return math.prod(packed.codes.shape) + math.prod(packed.scales.shape)
    # Both tables are kept in float32, where ties between tokens are resolved.
    is_table = name in ("embed_tokens", "lm_head")
    return math.prod(tensor.shape) * (compute_bytes + (FLOAT32_BYTES if is_table else 0))


def _available_bytes(device: torch.device) -> int:
    import torch

    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else probe_machine().memory_bytes
