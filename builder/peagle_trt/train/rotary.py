"""Root-mean-square norms and rotary embeddings, as the target and its heads share them.

Shape letters: D head dimension.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from peagle_trt.graph.rope import amplitude, inverse_frequencies

if TYPE_CHECKING:
    from torch import Tensor

    from peagle_trt.spec import RopeConfig


def rms_norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last axis, in the input's type."""
    import torch.nn.functional as functional

    return functional.rms_norm(hidden, (hidden.shape[-1],), weight, eps)


def rotary_tables(rope: RopeConfig, head_dim: int, positions: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the half-split rotary embedding, both [positions, D] float32."""
    import torch

    frequencies = torch.from_numpy(inverse_frequencies(rope, head_dim)).double()
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), frequencies)
    doubled = torch.cat([angles, angles], dim=-1)
    return (doubled.cos() * amplitude(rope)).float(), (doubled.sin() * amplitude(rope)).float()


def rotate(vectors: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Apply the half-split rotary embedding over the last axis."""
    import torch

    first, second = vectors.chunk(2, dim=-1)
    return vectors * cosines + torch.cat([-second, first], dim=-1) * sines
