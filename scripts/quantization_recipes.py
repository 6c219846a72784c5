"""What `measure_quantization` compares: some of the recipes, each with the calibration whose scales it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from peagle_trt.quant.calibration.dequantized import FEED_FORWARD
from peagle_trt.quant.layer_recipes import CALIBRATIONS, LAYER_RECIPES, LayerRecipe, load_shipped

Scheme = Literal["fp8", "nvfp4"]
# One run of calibration serves all recipes whose scales it holds.
_CALIBRATION_OF = {
    "fp8": "fp8-kv",
    "fp8-kv": "fp8-kv",
    "w4a16-nvfp4": "",
    "nvfp4": "nvfp4-kv",
    "nvfp4-kv": "nvfp4-kv",
    "nvfp4-mlp": "nvfp4-kv",
    "nvfp4-awq": "nvfp4-awq",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRecipe:
    """One row of the table.

    Attributes:
        layers: The recipe.
        calibration: Where scales come from, or empty.
    """

    layers: LayerRecipe
    calibration: str

    @property
    def name(self) -> str:
        """Of the recipe."""
        return self.layers.name

    @property
    def scheme(self) -> Scheme:
        """Number format of weights."""
        return cast("Scheme", self.layers.target.down.weights)

    @property
    def activations(self) -> Scheme | Literal[""]:
        """Number format of activations, or empty."""
        form = self.layers.target.down.activations
        return "" if form == "none" else form

    @property
    def cache(self) -> Scheme | Literal[""]:
        """Number format of the cache, or empty."""
        form = self.layers.target.cache
        return "" if form == "none" else form

    @property
    def parts(self) -> tuple[str, ...]:
        """Last names of the target's modules whose weights are quantized."""
        is_whole = self.layers.target.qkv.weights == self.scheme
        return ("q_proj", "k_proj", "v_proj", "o_proj", *FEED_FORWARD) if is_whole else FEED_FORWARD


RECIPES = {
    name: MeasuredRecipe(
        layers=load_shipped(name, LAYER_RECIPES if name in LAYER_RECIPES else CALIBRATIONS), calibration=calibration
    )
    for name, calibration in _CALIBRATION_OF.items()
}
