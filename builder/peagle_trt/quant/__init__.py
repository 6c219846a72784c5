"""Weights as a build stores them: recipes as data, the writer that streams them, and links where nothing is written."""

from peagle_trt.quant.choice import (
    Storage,
    choose_recipe,
    describe_kept_experts,
    float32_bytes,
    is_in_place,
    plan_storage,
    store_drafter,
    store_target,
)
from peagle_trt.quant.layer_recipes import BUILD_RECIPES
from peagle_trt.quant.registry import AUTOMATIC, Recipe, find_recipe, require_recipe
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
    "BUILD_RECIPES",
    "Recipe",
    "Storage",
    "StoredWeights",
    "choose_recipe",
    "describe_kept_experts",
    "find_recipe",
    "float32_bytes",
    "is_in_place",
    "link_drafter_weights",
    "link_target_weights",
    "open_stored",
    "plan_storage",
    "require_recipe",
    "store_drafter",
    "store_target",
    "write_drafter_weights",
    "write_target_weights",
]
