"""Recipes by name: how weights are stored in a build."""

from __future__ import annotations

from dataclasses import dataclass

from peagle_trt.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How weights are stored.

    Attributes:
        name: As typed on the command line.
        summary: One line for people.
        weight_type: Type of every floating tensor, as safetensors spells it.
    """

    name: str
    summary: str
    weight_type: str


RECIPES = {
    "fp32": Recipe(name="fp32", summary="float32 throughout; the reference of every other recipe", weight_type="F32")
}


def find_recipe(name: str) -> Recipe:
    """A recipe by name.

    Raises:
        UsageError: There is none of that name.
    """
    if name not in RECIPES:
        raise UsageError(f"unknown precision `{name}`", hint=f"known: {', '.join(RECIPES)}")
    return RECIPES[name]
