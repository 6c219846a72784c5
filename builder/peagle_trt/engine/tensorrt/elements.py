"""What the batched graphs of a recipe compute in."""

from __future__ import annotations

from typing import Literal

Element = Literal["FLOAT", "FLOAT16", "BFLOAT16"]
"""As in `onnx.TensorProto`."""


def compute_element(precision: str) -> Element:
    """float32 where the recipe stores that, else half of it."""
    if precision == "fp32":
        return "FLOAT"
    return "FLOAT16" if precision == "fp16" else "BFLOAT16"
