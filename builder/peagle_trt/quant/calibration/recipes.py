"""Which calibrations there are: what modelopt is asked for, and what becomes of the maxima it finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from peagle_trt.errors import UsageError
from peagle_trt.quant.layer_recipes import BUILD_RECIPES, CALIBRATIONS, LAYER_RECIPES, load_shipped, schemes

LARGEST = {"fp8": 448.0, "nvfp4": 6.0 * 448.0}
"""What a maximum is divided by: the largest E4M3 number, and the largest E2M1 number times the largest block scale."""
CACHE_LARGEST = 448.0
"""The same for a cache, in either format: modelopt 0.47 writes scales of an NVFP4 cache as if it were one of E4M3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationRecipe:
    """One way to calibrate; of a recipe of layers, what calibration has to know.

    Attributes:
        name: As typed.
        scheme: Number format of activations.
        preset: Name of modelopt's configuration.
        cache_preset: Name of modelopt's configuration of the cache, or empty.
        needs_experts: Nothing but experts is quantized.
    """

    name: str
    scheme: Literal["fp8", "nvfp4"]
    preset: str
    cache_preset: str = ""
    needs_experts: bool = False


def find_calibration(name: str) -> CalibrationRecipe:
    """A calibration by name.

    Raises:
        UsageError: There is none of that name, or the recipe quantizes no activations.
    """
    if name not in CALIBRATIONS and name in (*LAYER_RECIPES, *BUILD_RECIPES):
        raise UsageError(
            f"recipe `{name}` quantizes weights alone, so there is nothing to calibrate",
            hint=f"build with it as it is, or calibrate for one of {', '.join(CALIBRATIONS)}",
        )
    if name not in CALIBRATIONS:
        raise UsageError(f"unknown calibration `{name}`", hint=f"known: {', '.join(CALIBRATIONS)}")
    layers = load_shipped(name, CALIBRATIONS)
    forms = {scheme.activations for scheme in schemes(layers.target).values()}
    assert layers.calibration is not None, "every recipe of `CALIBRATIONS` has the section"
    return CalibrationRecipe(
        name=name,
        scheme="fp8" if "fp8" in forms else "nvfp4",
        preset=layers.calibration.preset,
        cache_preset=layers.calibration.cache_preset,
        needs_experts=layers.calibration.needs_experts,
    )
