"""Recipes by name: how weights are stored in a build, what its graphs compute in, and which backends take it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from peagle_trt.errors import UsageError

LinearScheme = Literal["none", "fp8", "nvfp4"]
ComputeElement = Literal["FLOAT", "FLOAT16", "BFLOAT16"]

_TENSORRT = ("tensorrt-rtx", "tensorrt")
_EVERY = ("onnxruntime", *_TENSORRT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How weights are stored and computed with.

    Attributes:
        name: As typed on the command line.
        summary: One line for people.
        weight_type: Type of every floating tensor that is not quantized, as safetensors spells it; None where each
            keeps the checkpoint's own and is read in place.
        linear_scheme: What the projections of the target's layers become; `nvfp4` takes its experts too. Embeddings,
            output layer, router, norms and the whole drafter keep `weight_type`: they are small or sensitive.
        keeps_mxfp4: Experts that the checkpoint has in MXFP4 stay in its files.
        compute_element: What a batched graph computes in, named as in `onnx.TensorProto`. ONNX Runtime on a CPU
            computes in float32 whatever is stored.
        backends: Names of backends that take it.
    """

    name: str
    summary: str
    weight_type: str | None
    linear_scheme: LinearScheme = "none"
    keeps_mxfp4: bool = True
    compute_element: ComputeElement = "BFLOAT16"
    backends: tuple[str, ...] = _EVERY


RECIPES = {
    "fp32": Recipe(
        name="fp32",
        summary="float32 throughout; the reference of every other recipe",
        weight_type="F32",
        keeps_mxfp4=False,
        compute_element="FLOAT",
    ),
    "native": Recipe(
        name="native",
        summary="the checkpoint's own bytes, read in place: nothing is stored twice, steps are slower than fp32's",
        weight_type=None,
    ),
    "bf16": Recipe(
        name="bf16", summary="bfloat16 throughout; gpt-oss's experts stay in MXFP4, in place", weight_type="BF16"
    ),
    "fp16": Recipe(
        name="fp16",
        summary="float16 throughout; gpt-oss's experts stay in MXFP4, in place",
        weight_type="F16",
        compute_element="FLOAT16",
    ),
    "fp8": Recipe(
        name="fp8",
        summary="E4M3 weights and activations in the target's projections, a scale for each row of activations, no "
        "calibration; the rest, experts among it, as bf16",
        weight_type="BF16",
        linear_scheme="fp8",
        backends=_TENSORRT,
    ),
    "nvfp4": Recipe(
        name="nvfp4",
        summary="NVFP4 weights and activations in the target's projections, a scale for each row of activations, no "
        "calibration; experts in NVFP4 as weights alone; the rest as bf16",
        weight_type="BF16",
        linear_scheme="nvfp4",
        backends=_TENSORRT,
    ),
}
AUTOMATIC = "auto"
"""Takes bf16 for TensorRT. Elsewhere fp32, unless that would write more than `MAX_AUTOMATIC_BYTES`."""
MAX_AUTOMATIC_BYTES = 16 << 30


def find_recipe(name: str) -> Recipe:
    """A recipe by name.

    Raises:
        UsageError: There is none of that name.
    """
    if name not in RECIPES:
        raise UsageError(f"unknown precision `{name}`", hint=f"known: {', '.join(RECIPES)}")
    return RECIPES[name]


def require_recipe(name: str, backend: str) -> Recipe:
    """A recipe that a backend takes.

    Raises:
        UsageError: There is none of that name, or the backend does not take it.
    """
    recipe = find_recipe(name)
    if backend not in recipe.backends:
        fitting = [each.name for each in RECIPES.values() if backend in each.backends]
        raise UsageError(
            f"precision `{name}` does not run in backend `{backend}`: {' and '.join(recipe.backends)} backends only",
            hint=f"`{backend}` takes {', '.join(fitting)}" if fitting else "take another backend",
        )
    return recipe
