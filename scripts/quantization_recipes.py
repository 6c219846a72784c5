"""What `measure_quantization` compares, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from peagle_trt.quant.calibration.dequantized import FEED_FORWARD

Scheme = Literal["fp8", "nvfp4"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRecipe:
    """One row of the table.

    Attributes:
        name: Of the recipe.
        scheme: Number format of weights.
        activations: Number format of activations, or empty.
        cache: Number format of the cache, or empty.
        calibration: Where scales come from, or empty.
        is_feed_forward_only: Attention is left alone.
    """

    name: str
    scheme: Scheme
    activations: Scheme | Literal[""] = ""
    cache: Scheme | Literal[""] = ""
    calibration: str = ""
    is_feed_forward_only: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        """Last names of the target's modules whose weights are quantized."""
        return FEED_FORWARD if self.is_feed_forward_only else ("q_proj", "k_proj", "v_proj", "o_proj", *FEED_FORWARD)


RECIPES = {
    recipe.name: recipe
    for recipe in (
        MeasuredRecipe(name="fp8", scheme="fp8", activations="fp8", calibration="fp8-kv"),
        MeasuredRecipe(name="fp8-kv", scheme="fp8", activations="fp8", cache="fp8", calibration="fp8-kv"),
        MeasuredRecipe(name="w4a16-nvfp4", scheme="nvfp4"),
        MeasuredRecipe(name="nvfp4", scheme="nvfp4", activations="nvfp4", calibration="nvfp4-kv"),
        MeasuredRecipe(name="nvfp4-kv", scheme="nvfp4", activations="nvfp4", cache="fp8", calibration="nvfp4-kv"),
        MeasuredRecipe(
            name="nvfp4-mlp", scheme="nvfp4", activations="nvfp4", calibration="nvfp4-kv", is_feed_forward_only=True
        ),
        MeasuredRecipe(name="nvfp4-awq", scheme="nvfp4", activations="nvfp4", calibration="nvfp4-awq"),
    )
}
