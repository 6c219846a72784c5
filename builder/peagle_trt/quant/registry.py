"""Recipes of builds by name: how weights are stored, what graphs compute in, and which backends take it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

from peagle_trt.errors import UsageError
from peagle_trt.quant.layer_kinds import kind_of
from peagle_trt.quant.layer_recipes import (
    AS_STORED,
    BUILD_RECIPES,
    FLOAT_FORMS,
    INTEGER_FORMS,
    DrafterLayers,
    LayerScheme,
    TargetLayers,
    load_shipped,
    schemes,
)

ComputeElement = Literal["FLOAT", "FLOAT16", "BFLOAT16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How weights are stored and computed with: a recipe of layers, as a build takes it.

    Attributes:
        name: As typed on the command line.
        summary: One line for people.
        weight_type: See `BuildRules`.
        target: What becomes of each kind of the target's layers.
        drafter: What becomes of the drafter's.
        keeps_mxfp4: See `BuildRules`.
        needs_mxfp4: See `BuildRules`.
        scales_columns: See `BuildRules`.
        compute_element: See `BuildRules`.
        backends: Names of backends that take it.
        leaves: Kinds of the target's layers that stay as they are all the same.
    """

    name: str
    summary: str
    weight_type: str | None
    target: TargetLayers
    drafter: DrafterLayers
    keeps_mxfp4: bool
    needs_mxfp4: bool
    scales_columns: bool
    compute_element: ComputeElement
    backends: tuple[str, ...]
    leaves: tuple[str, ...] = ()

    @property
    def rounds_to_integers(self) -> bool:
        """Whether a build's weights are integers, with which it is compared instead of the checkpoint's."""
        parts = (*schemes(self.target).values(), *schemes(self.drafter).values())
        return any(scheme.weights in INTEGER_FORMS for scheme in parts)

    @property
    def rounds_activations(self) -> bool:
        """Whether products of a build take their rows in another form; those of experts never do."""
        target = (scheme for kind, scheme in schemes(self.target).items() if kind != EXPERTS)
        return any(scheme.activations != "none" for scheme in (*target, *schemes(self.drafter).values()))

    @property
    def rounds_rows(self) -> bool:
        """Whether products round what they are given, so that no weights alone tell what they give."""
        return self.rounds_to_integers or self.rounds_activations

    @property
    def is_judged_by_own_weights(self) -> bool:
        """Whether a build's weights stray too far from the checkpoint's to be compared with them: each matrix is, and
        the graphs are compared with what the build's own weights give. Where rows are rounded to floats too, nothing
        is left to judge.
        """
        parts = (*schemes(self.target).values(), *schemes(self.drafter).values())
        packs_floats = any(scheme.weights in FLOAT_FORMS for scheme in parts)
        return self.rounds_to_integers or (packs_floats and not self.rounds_activations)

    def target_scheme(self, name: str) -> LayerScheme:
        """What becomes of one of the target's tensors, by its stored name."""
        kind = kind_of(name)
        return AS_STORED if kind in self.leaves else schemes(self.target).get(kind, AS_STORED)

    def drafter_scheme(self, name: str) -> LayerScheme:
        """What becomes of one of the drafter's tensors, by its stored name."""
        return schemes(self.drafter).get(kind_of(name), AS_STORED)


EXPERTS = "experts"
"""The kind of layer whose matrices are chosen while a graph runs."""
_CACHE_REASON = (
    "TensorRT updates no cache of FP8 in place (TensorRT-RTX 1.7.1: `cache has type FP8 but must have type Float, "
    "Half, or BFloat16`)"
)
UNBUILDABLE = {
    "fp8-kv": (_CACHE_REASON, "fp8"),
    "nvfp4-kv": (_CACHE_REASON, "nvfp4"),
}
"""Recipes of checkpoints that no build takes: why, and the nearest that one takes."""

AUTOMATIC = "auto"
"""Takes bf16 for TensorRT. Elsewhere fp32, unless that would write more than `MAX_AUTOMATIC_BYTES`."""
MAX_AUTOMATIC_BYTES = 16 << 30


@functools.cache
def find_recipe(name: str) -> Recipe:
    """A recipe by name.

    Raises:
        UsageError: There is none of that name.
    """
    if name in UNBUILDABLE:
        reason, nearest = UNBUILDABLE[name]
        raise UsageError(
            f"precision `{name}` cannot be built: {reason}",
            hint=f"build with --precision {nearest}, whose cache is bfloat16; `convert --recipe {name}` writes it for "
            "engines that have such a cache",
        )
    if name not in BUILD_RECIPES:
        raise UsageError(f"unknown precision `{name}`", hint=f"known: {', '.join(BUILD_RECIPES)}")
    layers = load_shipped(name, BUILD_RECIPES)
    rules = layers.build
    assert rules is not None, "every recipe of `BUILD_RECIPES` has the section"
    return Recipe(
        name=name,
        summary=rules.summary or layers.summary,
        weight_type=rules.weight_type,
        target=layers.target,
        drafter=layers.drafter,
        keeps_mxfp4=rules.keeps_mxfp4,
        needs_mxfp4=rules.needs_mxfp4,
        scales_columns=rules.scales_columns,
        compute_element=rules.compute_element,
        backends=rules.backends,
        leaves=rules.leaves,
    )


def require_recipe(name: str, backend: str) -> Recipe:
    """A recipe that a backend takes.

    Raises:
        UsageError: There is none of that name, or the backend does not take it.
    """
    recipe = find_recipe(name)
    if backend not in recipe.backends:
        fitting = [each for each in BUILD_RECIPES if backend in find_recipe(each).backends]
        raise UsageError(
            f"precision `{name}` does not run in backend `{backend}`: {' and '.join(recipe.backends)} "
            f"backend{'s' if len(recipe.backends) > 1 else ''} only",
            hint=f"`{backend}` takes {', '.join(fitting)}" if fitting else "take another backend",
        )
    return recipe
