"""Which calibrations there are: what modelopt is asked for, and what becomes of the maxima it finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from peagle_trt.errors import UsageError

LARGEST = {"fp8": 448.0, "nvfp4": 6.0 * 448.0}
"""What a maximum is divided by: the largest E4M3 number, and the largest E2M1 number times the largest block scale."""
CACHE_LARGEST = 448.0
"""The same for a cache, in either format: modelopt 0.47 writes scales of an NVFP4 cache as if it were one of E4M3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationRecipe:
    """One way to calibrate.

    Attributes:
        name: As typed.
        summary: One line for people.
        scheme: Number format of activations.
        preset: Name of modelopt's configuration.
        cache_preset: Name of modelopt's configuration of the cache, or empty.
        needs_experts: Nothing but experts is quantized.
    """

    name: str
    summary: str
    scheme: Literal["fp8", "nvfp4"]
    preset: str
    cache_preset: str = ""
    needs_experts: bool = False


CALIBRATIONS = {
    recipe.name: recipe
    for recipe in (
        CalibrationRecipe(
            name="fp8", summary="E4M3 activations of every projection", scheme="fp8", preset="FP8_DEFAULT_CFG"
        ),
        CalibrationRecipe(
            name="fp8-kv",
            summary="the same, and an E4M3 cache",
            scheme="fp8",
            preset="FP8_DEFAULT_CFG",
            cache_preset="FP8_KV_CFG",
        ),
        CalibrationRecipe(
            name="nvfp4", summary="NVFP4 activations of every projection", scheme="nvfp4", preset="NVFP4_DEFAULT_CFG"
        ),
        CalibrationRecipe(
            name="nvfp4-kv",
            summary="the same, and an E4M3 cache",
            scheme="nvfp4",
            preset="NVFP4_DEFAULT_CFG",
            cache_preset="FP8_KV_CFG",
        ),
        CalibrationRecipe(
            name="nvfp4-kv4",
            summary="the same, and an NVFP4 cache",
            scheme="nvfp4",
            preset="NVFP4_DEFAULT_CFG",
            cache_preset="NVFP4_KV_CFG",
        ),
        CalibrationRecipe(
            name="nvfp4-awq",
            summary="NVFP4 with a scale for every input column, chosen by AWQ-lite's search",
            scheme="nvfp4",
            preset="NVFP4_AWQ_LITE_CFG",
        ),
        CalibrationRecipe(
            name="nvfp4-mlp",
            summary="NVFP4 activations of the feed-forward layers, experts among them",
            scheme="nvfp4",
            preset="NVFP4_MLP_ONLY_CFG",
        ),
        CalibrationRecipe(
            name="nvfp4-experts",
            summary="NVFP4 activations of the experts",
            scheme="nvfp4",
            preset="NVFP4_EXPERTS_ONLY_CFG",
            needs_experts=True,
        ),
    )
}
_NOTHING_TO_CALIBRATE = ("fp32", "native", "bf16", "fp16", "mxfp4", "w4a16-nvfp4")


def find_calibration(name: str) -> CalibrationRecipe:
    """A calibration by name.

    Raises:
        UsageError: There is none of that name, or the recipe quantizes no activations.
    """
    if name in _NOTHING_TO_CALIBRATE:
        raise UsageError(
            f"recipe `{name}` quantizes weights alone, so there is nothing to calibrate",
            hint=f"build with it as it is, or calibrate for one of {', '.join(CALIBRATIONS)}",
        )
    if name not in CALIBRATIONS:
        raise UsageError(f"unknown calibration `{name}`", hint=f"known: {', '.join(CALIBRATIONS)}")
    return CALIBRATIONS[name]
