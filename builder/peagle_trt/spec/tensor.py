"""What a tensor of a checkpoint is and where its bytes lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLocation:
    """A run of bytes in a file.

    Attributes:
        path: The file.
        offset_bytes: First byte of the tensor.
        length_bytes: Bytes of the tensor.
    """

    path: Path
    offset_bytes: int
    length_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """A tensor by name.

    Attributes:
        name: Name, ours or a checkpoint's.
        dtype: Element type as safetensors spells it: F32, F16, BF16, I64, I32, U8, BOOL; or a GGUF type such as Q4_1.
        shape: Dimensions, outermost first.
        location: Where the bytes lie, or None for a tensor that is computed.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    location: TensorLocation | None = None
