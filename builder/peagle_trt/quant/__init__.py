"""Weights as a build stores them: recipes as data, and the writer that streams them."""

from peagle_trt.quant.registry import RECIPES, Recipe, find_recipe
from peagle_trt.quant.store import StoredWeights, open_stored, write_drafter_weights, write_target_weights

__all__ = [
    "RECIPES",
    "Recipe",
    "StoredWeights",
    "find_recipe",
    "open_stored",
    "write_drafter_weights",
    "write_target_weights",
]
