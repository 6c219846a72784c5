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
        weight_type: Type of every floating tensor, as safetensors spells it; None where each keeps the checkpoint's
            own, is read in place and widened to float32 when it is used.
    """

    name: str
    summary: str
    weight_type: str | None


RECIPES = {
    "fp32": Recipe(name="fp32", summary="float32 throughout; the reference of every other recipe", weight_type="F32"),
    "native": Recipe(
        name="native",
        summary="the checkpoint's own bytes, read in place: nothing is stored twice, steps are slower than fp32's",
        weight_type=None,
    ),
}
AUTOMATIC = "auto"
"""Takes fp32 unless that would write more than `MAX_AUTOMATIC_BYTES`."""
MAX_AUTOMATIC_BYTES = 16 << 30


def find_recipe(name: str) -> Recipe:
    """A recipe by name.

    Raises:
        UsageError: There is none of that name.
    """
    if name not in RECIPES:
        raise UsageError(f"unknown precision `{name}`", hint=f"known: {', '.join(RECIPES)}")
    return RECIPES[name]
