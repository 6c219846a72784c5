"""The words that every contract of this package is written in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DOMAIN = "peagle"
VERSION = 1

TENSORRT_ATTRIBUTES: dict[str, int | str] = {
    "plugin_namespace": DOMAIN,
    "plugin_version": "1",
    "aot": 1,
    "contract_version": VERSION,
}
"""Attributes by which TensorRT's ONNX parser finds a plugin; other runtimes let them pass and run the function body.

TensorRT's Python plugins always register as version "1", so that the contract's own version travels as an attribute.
"""

MAX_DRAFT_TOKENS = 16
MAX_HIDDEN_SIZE = 8192

ElementType = Literal["float", "float32", "int32", "int64"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One input or output.

    Attributes:
        name: Its name in every form.
        element: "float" is float32, float16 or bfloat16, the same for all ports of a call; only a table of the
            vocabulary (`embedding`, `lm_head`) may be of another of the three, since it is used where it lies in a
            checkpoint.
        dims: Shape in the letters of the contract's module.
        meaning: What it holds.
    """

    name: str
    element: ElementType
    dims: tuple[str, ...]
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute:
    """One setting fixed at build time."""

    name: str
    kind: Literal["float", "int"]
    meaning: str
