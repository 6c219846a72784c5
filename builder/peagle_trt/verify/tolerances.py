"""How far an engine may be from its reference: the one table, with reasons."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Limits for one recipe.

    Attributes:
        logits: Largest absolute error of a logit.
        hidden: Largest error of an auxiliary hidden state, as a share of the largest entry of its row.
        reason: Why these numbers.
        own_draft_logits: Largest absolute error of a drafter's logit, where it is not the target's.
    """

    logits: float
    hidden: float
    reason: str
    own_draft_logits: float | None = None

    @property
    def draft_logits(self) -> float:
        """Largest absolute error of a drafter's logit."""
        return self.logits if self.own_draft_logits is None else self.own_draft_logits


_FLOAT32 = Tolerance(
    logits=5e-3,
    hidden=1e-4,
    reason="float32 against float64 over 30 layers: measured 2e-4 on logits of magnitude 30 and 1e-6 of a row; "
    "a wrong position, mask or norm moves logits by 0.1 and more",
)
_ROUNDED_ACTIVATIONS = Tolerance(
    logits=math.inf,
    hidden=math.inf,
    reason="how far a model with rounded activations strays is its quality, which is recorded, and no fault: 18 on "
    "logits of SmolLM2 in fp8 without calibration; only numbers that are none are refused",
)
_INTEGERS = Tolerance(
    logits=4.0,
    hidden=5e-2,
    reason="against the build's own rounded weights, but rows are rounded to 8 bits in every product, which float64 "
    "does not: measured 1.3 and 1.2e-2 on SmolLM2; another matrix or another block's scale moves logits by 10",
)
_ROUNDED_WEIGHTS = Tolerance(
    logits=math.inf,
    hidden=math.inf,
    reason="against the checkpoint's weights, which NVFP4 changes by a tenth: how far that moves a model is its "
    "quality, which is recorded; against the build's own weights such a build is judged as fp32",
)
_BFLOAT16 = Tolerance(
    logits=1.0,
    hidden=2e-2,
    reason="weights of 8 bits of mantissa against the checkpoint's 24: measured 0.16 and 2.1e-3 on SmolLM2",
)
TOLERANCES = {
    "fp32": _FLOAT32,
    # Widening is exact, and everything after it is float32.
    "native": _FLOAT32,
    "bf16": _BFLOAT16,
    "mxfp4": _BFLOAT16,
    "fp16": Tolerance(
        logits=0.25,
        hidden=3e-3,
        reason="weights of 11 bits of mantissa against the checkpoint's 24: measured 0.037 and 3.1e-4 on SmolLM2",
    ),
    "int8": _INTEGERS,
    "int4": _INTEGERS,
    "fp32-int8-drafter": Tolerance(
        logits=_FLOAT32.logits,
        hidden=_FLOAT32.hidden,
        own_draft_logits=_INTEGERS.logits,
        reason="the target is fp32's; the drafter's rows are rounded to 8 bits as those of int8 are: measured 0.7",
    ),
    "fp8": _ROUNDED_ACTIVATIONS,
    "nvfp4": _ROUNDED_ACTIVATIONS,
    "nvfp4-awq": _ROUNDED_ACTIVATIONS,
    "nvfp4-mlp": _ROUNDED_ACTIVATIONS,
    "nvfp4-experts": _ROUNDED_WEIGHTS,
    "w4a16-nvfp4": _ROUNDED_WEIGHTS,
}
"""By name of the recipe in `quant.registry`."""
_ROUNDED_CHOICES = Tolerance(
    logits=math.inf,
    hidden=math.inf,
    reason="a router that reads rounded rows may choose another expert, and then sound models differ by anything",
)


def recipe_tolerance(precision: str, *, has_experts: bool) -> Tolerance:
    """The limits for a recipe and a kind of target."""
    tolerance = TOLERANCES[precision]
    return _ROUNDED_CHOICES if tolerance is _INTEGERS and has_experts else tolerance


ELEMENT_TOLERANCES = {
    "FLOAT16": Tolerance(
        logits=0.25,
        hidden=3e-2,
        reason="eleven bits of mantissa through 30 layers; a wrong position, mask or norm moves more",
    ),
    "BFLOAT16": Tolerance(
        logits=2.0,
        hidden=2e-1,
        reason="eight bits of mantissa through 30 layers; a wrong position, mask or norm moves more",
    ),
}
"""By what an engine computes in, where that is less than float32; no GPU has measured them yet."""

LARGEST_ROUNDING = {"4 bits": 0.38, "8 bits": 0.03, "NVFP4": 0.25, "BF16": 2**-8, "F16": 2**-8}
"""Relative error that rounding can make. Blocks of 32 integers, by their bits: where one number of a block is its
whole range, the other 31 are off by a step at most: sqrt(31) / 15, or sqrt(31) / 255. Blocks of NVFP4: the others are
off by a fifth of themselves at most where they count, and the largest by a sixteenth, as its scale is rounded too.
Halves: half a step of a number is 2^-9 of it, or 2^-12; far smaller ones of float16 add to it. Another matrix is off
by 1.4."""
