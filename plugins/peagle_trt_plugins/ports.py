"""The words that every contract of this package is written in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DOMAIN = "peagle"
VERSION = 1

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
