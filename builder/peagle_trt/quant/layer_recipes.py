"""Recipes of quantized checkpoints: which kind of layer becomes what, read from one TOML file a recipe.

They describe checkpoints that other engines load. What a build stores for its own engines is `registry.RECIPES`.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Literal

import msgspec

from peagle_trt.errors import CheckpointError, UsageError
from peagle_trt.files import naming_os_errors

WeightForm = Literal["stored", "bf16", "fp8", "nvfp4"]
"""`stored` leaves a tensor as the checkpoint has it."""
ActivationForm = Literal["none", "fp8", "nvfp4"]
CacheForm = Literal["none", "fp8"]
Algorithm = Literal["FP8", "NVFP4", "W4A16_NVFP4"]
"""As ModelOpt's files spell it."""

LAYER_RECIPES = ("fp8", "fp8-kv", "nvfp4", "nvfp4-experts", "nvfp4-mlp", "w4a16-nvfp4", "mxfp4", "bf16")
_FOLDER = Path(__file__).parent / "recipes"
_ALGORITHMS: dict[tuple[WeightForm, ActivationForm], Algorithm | None] = {
    ("stored", "none"): None,
    ("bf16", "none"): None,
    ("fp8", "fp8"): "FP8",
    ("nvfp4", "nvfp4"): "NVFP4",
    ("nvfp4", "none"): "W4A16_NVFP4",
}
# No loader reads them quantized.
_PLAIN_KINDS = ("embedding", "router", "norms")


class LayerScheme(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one kind of layer becomes.

    Attributes:
        weights: Form of its weights.
        activations: Form that its input is brought into where it runs.
    """

    weights: WeightForm = "stored"
    activations: ActivationForm = "none"

    @property
    def algorithm(self) -> Algorithm | None:
        """ModelOpt's name of the scheme; None where nothing is quantized."""
        return _ALGORITHMS[self.weights, self.activations]


AS_STORED = LayerScheme()


class TargetLayers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A target's kinds of layers.

    Attributes:
        embedding: The embedding table, and with it a tied output layer.
        lm_head: The output layer.
        qkv: Queries, keys and values; they are multiplied as one and share a scale.
        o: The attention's output.
        gate_up: Gate and up; they share a scale.
        down: Down.
        router: What chooses among experts.
        experts: The matrices of experts; gate and up of an expert share a scale.
        norms: Norms, biases and sinks.
        packed_experts: Experts that are in MXFP4 already: kept, cast to NVFP4 exactly, or unpacked to bfloat16.
        cache: The cache of keys and values.
        keep: Patterns of modules' names in the checkpoint, such as `model.layers.0.*`, that stay as they are.
    """

    embedding: LayerScheme = AS_STORED
    lm_head: LayerScheme = AS_STORED
    qkv: LayerScheme = AS_STORED
    o: LayerScheme = AS_STORED
    gate_up: LayerScheme = AS_STORED
    down: LayerScheme = AS_STORED
    router: LayerScheme = AS_STORED
    experts: LayerScheme = AS_STORED
    norms: LayerScheme = AS_STORED
    packed_experts: Literal["keep", "cast", "unpack"] = "keep"
    cache: CacheForm = "none"
    keep: tuple[str, ...] = ()


class DrafterLayers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A drafter's kinds of layers; see `TargetLayers`. Its masked state and its vocabulary map always stay.

    Attributes:
        embedding: The embedding table, where the head has its own.
        lm_head: The output layer, where the head has its own.
        fc: What fuses the target's hidden states.
        qkv: Queries, keys and values.
        o: The attention's output.
        gate_up: Gate and up.
        down: Down.
        norms: Norms and biases.
        cache: The cache of keys and values.
    """

    embedding: LayerScheme = AS_STORED
    lm_head: LayerScheme = AS_STORED
    fc: LayerScheme = AS_STORED
    qkv: LayerScheme = AS_STORED
    o: LayerScheme = AS_STORED
    gate_up: LayerScheme = AS_STORED
    down: LayerScheme = AS_STORED
    norms: LayerScheme = AS_STORED
    cache: CacheForm = "none"


class LayerRecipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A recipe.

    Attributes:
        summary: One line for people.
        target: What becomes of a target.
        drafter: What becomes of a drafter.
        name: File name without its ending.
    """

    summary: str
    target: TargetLayers = TargetLayers()
    drafter: DrafterLayers = DrafterLayers()
    name: str = ""


def load_layer_recipe(name_or_path: str) -> LayerRecipe:
    """A recipe by name, or from a TOML file.

    Raises:
        UsageError: There is none of that name, or the file is no recipe.
    """
    path = Path(name_or_path) if name_or_path.endswith(".toml") else _FOLDER / f"{name_or_path}.toml"
    if path.parent == _FOLDER and name_or_path not in LAYER_RECIPES:
        hint = f"known: {', '.join(LAYER_RECIPES)}; or the path of a .toml file"
        raise UsageError(f"unknown recipe `{name_or_path}`", hint=hint)
    if not path.is_file():
        raise UsageError(f"`{path}` is no file", hint="give a recipe's name or its TOML file")
    with naming_os_errors(path):
        raw = path.read_bytes()
    try:
        document = tomllib.loads(raw.decode())
        recipe = msgspec.convert({**document, "name": path.stem}, LayerRecipe)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise UsageError(f"`{path}` is no recipe: {error}", hint="see the shipped ones for every key") from error
    for part in ("target", "drafter"):
        _check_part(path, part, getattr(recipe, part))
    return recipe


def algorithm_of(layers: TargetLayers | DrafterLayers) -> Algorithm | None:
    """ModelOpt's name for what a part of a recipe does; None where it quantizes nothing."""
    named = {scheme.algorithm for scheme in schemes(layers).values()} - {None}
    return named.pop() if named else None


def schemes(layers: TargetLayers | DrafterLayers) -> dict[str, LayerScheme]:
    """Every kind of layer with what becomes of it."""
    fields = {name: getattr(layers, name) for name in layers.__struct_fields__}
    return {name: value for name, value in fields.items() if isinstance(value, LayerScheme)}


def refuse_no_match(recipe: LayerRecipe, path: Path) -> CheckpointError:
    """The error for a recipe that changes nothing in a checkpoint; the caller raises it."""
    return CheckpointError(
        f"recipe `{recipe.name}` matches no layer of `{path}`", hint=f"take another recipe: {', '.join(LAYER_RECIPES)}"
    )


def _check_part(path: Path, part: str, layers: TargetLayers | DrafterLayers) -> None:
    named: dict[Algorithm, str] = {}
    for kind, scheme in schemes(layers).items():
        where = f"`{path}`: `{part}.{kind}`"
        if (scheme.weights, scheme.activations) not in _ALGORITHMS:
            known = ", ".join(f"{weights} with {activations}" for weights, activations in _ALGORITHMS)
            raise UsageError(
                f"{where} pairs weights in `{scheme.weights}` with activations in `{scheme.activations}`, "
                "which no loader reads",
                hint=f"weights with activations: {known}",
            )
        if scheme.algorithm is None:
            continue
        if kind in _PLAIN_KINDS:
            raise UsageError(
                f"{where} is to be quantized, which no loader reads", hint="`stored` and `bf16` are what it can be"
            )
        named[scheme.algorithm] = kind
    if len(named) > 1:
        (first, one), (second, other) = list(named.items())[:2]
        raise UsageError(
            f"`{path}`: `{part}.{one}` is {first} and `{part}.{other}` {second}",
            hint="a checkpoint has one algorithm, beside layers that it leaves out",
        )
    if isinstance(layers, TargetLayers) and layers.packed_experts == "cast" and layers.experts.weights != "nvfp4":
        raise UsageError(
            f"`{path}`: `target.packed_experts` casts to NVFP4, but `target.experts` has weights in "
            f"`{layers.experts.weights}`",
            hint='set both, or `packed_experts = "keep"`',
        )
