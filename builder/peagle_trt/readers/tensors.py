"""Lazy weights under our own names: described at once, read one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peagle_trt.errors import CheckpointError
from peagle_trt.spec import TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LazyTensor:
    """A tensor whose bytes stay on disk until they are asked for.

    Attributes:
        spec: Foreign name, stored type, shape and place.
        load: Reads it; returns a C-contiguous array of `spec.shape`, float32 for every floating type.
    """

    spec: TensorSpec
    load: Callable[[], NDArray[np.generic]]

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
        _require_finite(tensor.spec, values)
        return values


def _require_finite(spec: TensorSpec, values: NDArray[np.generic]) -> None:
    """Refuse nan and infinity here, where the foreign name is known: later they would only spoil the answer."""
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
