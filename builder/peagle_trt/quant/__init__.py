"""Weights as a build stores them: recipes as data, the writer that streams them, and links where nothing is written."""

from peagle_trt.quant.registry import AUTOMATIC, RECIPES, Recipe, find_recipe
from peagle_trt.quant.store import (
    StoredWeights,
    link_drafter_weights,
    link_target_weights,
    open_stored,
    write_drafter_weights,
    write_target_weights,
)

__all__ = [
    "AUTOMATIC",
    "RECIPES",
    "Recipe",
    "StoredWeights",
    "find_recipe",
    "link_drafter_weights",
    "link_target_weights",
    "open_stored",
    "write_drafter_weights",
    "write_target_weights",
]
