"""A head as one dialect spells it, before a byte is written; and what a dialect cannot spell."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peagle_trt.errors import CheckpointError
from peagle_trt.readers import DrafterCheckpoint
from peagle_trt.readers.safetensors_file import ELEMENT_BYTES
from peagle_trt.spec import TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SpelledTensor:
    """A tensor to be written.

    Attributes:
        name: The dialect's name.
        dtype: Element type as safetensors spells it.
        shape: Dimensions, outermost first.
        pieces: Yields its bytes in order; called once, while it is written, so that no tensor need be held whole.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Callable[[], Iterator[NDArray[np.uint8]]]

    @property
    def length_bytes(self) -> int:
        """Bytes that `pieces` yields in all."""
        return ELEMENT_BYTES[self.dtype] * math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpelledHead:
    """Everything that makes a checkpoint's folder, the texts beside it aside.

    Attributes:
        document: Its config.json.
        tensors: Its weights.
        notes: What its reader must know, a sentence each.
    """

    document: Mapping[str, object]
    tensors: tuple[SpelledTensor, ...]
    notes: tuple[str, ...] = ()


def cannot_hold(dialect: str, what: str, reason: str) -> CheckpointError:
    """The error for a head that a dialect has no words for; the caller raises it."""
    return CheckpointError(
        f"the {dialect} dialect cannot hold {what}: {reason}",
        hint="convert to another dialect; written anyway, the head would draft badly and nothing would tell",
    )


def already_quantized(codes: TensorSpec) -> CheckpointError:
    """The error for weights that are codes already; the caller raises it."""
    where = f"`{codes.location.path}`: " if codes.location else ""
    return CheckpointError(
        f"{where}`{codes.name}` is quantized already ({codes.dtype})",
        hint="take the checkpoint that it was made from: rounding twice loses twice",
    )


def refuse_quantized_head(drafter: DrafterCheckpoint) -> None:
    """Refuse a head whose weights are codes.

    Raises:
        CheckpointError: They are.
    """
    for lazy in drafter.weights.values():
        if lazy.packed is not None:
            raise already_quantized(lazy.packed.codes)
