"""Lazy weights under our own names: described at once, read one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from peagle_trt.errors import CheckpointError
from peagle_trt.spec import TensorSpec

PackedForm = Literal["mxfp4", "nvfp4", "fp8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTensor:
    """A tensor as a quantized checkpoint stores it: codes, and scales that they are multiplied by.

    Attributes:
        form: `mxfp4` is E2M1 with an E8M0 scale for 32 values of a row; `nvfp4` is E2M1 with an E4M3 scale for 16 of a
            row and one scale for all; `fp8` is E4M3 with scales of any floating type.
        codes: As stored; two E2M1 codes a byte, the low nibble first.
        scales: As stored.
        block: fp8 only; rows and columns that share a scale, 0 for all of them.
        global_scale: nvfp4 only; the scale of all.
        divides_by_global: nvfp4 only; the scale of all is stored as its reciprocal (compressed-tensors).
        is_transposed: Rows and columns have changed places; codes run along the columns (modelopt's gpt-oss).
    """

    form: PackedForm
    codes: TensorSpec
    scales: TensorSpec
    block: tuple[int, int] = (0, 0)
    global_scale: TensorSpec | None = None
    divides_by_global: bool = False
    is_transposed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LazyTensor:
    """A tensor whose bytes stay on disk until they are asked for.

    Attributes:
        spec: Foreign name, stored type, shape and place; without a place where the tensor is more than its bytes: it is
            packed, turned around or put together from several.
        load: Reads it; returns a C-contiguous array of `spec.shape`, float32 for every floating type.
        packed: How it is stored, where a quantized checkpoint stores it as one piece.
        parts: What it is put together from, where that is several tensors: matrices of all experts, expert by expert.
    """

    spec: TensorSpec
    load: Callable[[], NDArray[np.generic]]
    packed: PackedTensor | None = None
    parts: tuple[LazyTensor, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions after loading, outermost first."""
        return self.spec.shape


class Weights(Mapping[str, LazyTensor]):
    """Tensors by our own names (see `names.py`)."""

    def __init__(self, tensors: Mapping[str, LazyTensor]) -> None:
        self._tensors = dict(tensors)

    def __getitem__(self, name: str) -> LazyTensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def load(self, name: str) -> NDArray[np.generic]:
        """Bytes of one tensor; float32 for every floating type.

        Raises:
            KeyError: There is no tensor of that name.
            CheckpointError: It holds a value that is no number, or is infinite.
        """
        tensor = self._tensors[name]
        values = tensor.load()
        require_finite(tensor.packed.codes if tensor.packed else tensor.spec, values)
        return values


def require_finite(spec: TensorSpec, values: NDArray[np.generic]) -> None:
    """Refuse nan and infinity here, where the foreign name is known: later they would only spoil the answer.

    Raises:
        CheckpointError: There is one.
    """
    if not np.issubdtype(values.dtype, np.floating):
        return
    is_finite = np.isfinite(values)
    if not is_finite.all():
        first = [int(index) for index in np.unravel_index(is_finite.argmin(), values.shape)]
        where = f"`{spec.location.path}`: " if spec.location else ""
        raise CheckpointError(
            f"{where}tensor `{spec.name}` holds {np.count_nonzero(~is_finite):,} value(s) that are nan or infinite, "
            f"first at {first}: {values[tuple(first)]}",
            hint="the weights are damaged, or training diverged; fetch the checkpoint again",
        )
