"""Recipes: which kind of layer becomes what, read from one TOML file a recipe.

One file serves three uses. `[target]` and `[drafter]` say what becomes of each kind of layer, in a checkpoint for other
engines and in a build of our own. `[calibration]` says what measures the scales that it wants. `[build]` says what only
a build decides: what it computes in, which backends take it, and which layers its engines cannot take in that form.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Literal, get_args

import msgspec

from peagle_trt.errors import CheckpointError, UsageError
from peagle_trt.files import naming_os_errors

WeightForm = Literal["stored", "bf16", "fp8", "nvfp4", "int8", "int4"]
"""`stored` leaves a tensor as the checkpoint has it; in a build, as `[build]` stores what is not quantized. `int8` and
`int4` are for builds alone."""
ActivationForm = Literal["none", "fp8", "nvfp4"]
CacheForm = Literal["none", "fp8"]
Algorithm = Literal["FP8", "NVFP4", "W4A16_NVFP4", "MIXED_PRECISION"]
"""As ModelOpt's files spell it; the last one of checkpoints whose layers differ, and of no layer."""
MIXED: Algorithm = "MIXED_PRECISION"

LAYER_RECIPES = ("fp8", "fp8-kv", "nvfp4", "nvfp4-kv", "nvfp4-experts", "nvfp4-mlp", "w4a16-nvfp4", "mxfp4", "bf16")
"""Recipes of checkpoints that other engines load."""
BUILD_RECIPES = (
    "fp32",
    "native",
    "bf16",
    "fp16",
    "mxfp4",
    "int8",
    "int4",
    "fp32-int8-drafter",
    "fp8",
    "nvfp4",
    "nvfp4-awq",
    "nvfp4-mlp",
    "nvfp4-experts",
    "w4a16-nvfp4",
)
"""Recipes that a build takes; each has a `[build]`."""
CALIBRATIONS = ("fp8", "fp8-kv", "nvfp4", "nvfp4-kv", "nvfp4-awq", "nvfp4-mlp", "nvfp4-experts")
"""Recipes whose scales can be measured; each has a `[calibration]`."""
_EVERY_RECIPE = tuple(dict.fromkeys((*LAYER_RECIPES, *BUILD_RECIPES, *CALIBRATIONS)))
_FOLDER = Path(__file__).parent / "recipes"
_ALGORITHMS: dict[tuple[WeightForm, ActivationForm], Algorithm | None] = {
    ("stored", "none"): None,
    ("bf16", "none"): None,
    ("fp8", "fp8"): "FP8",
    ("nvfp4", "nvfp4"): "NVFP4",
    ("nvfp4", "none"): "W4A16_NVFP4",
    ("int8", "none"): None,
    ("int4", "none"): None,
}
INTEGER_FORMS = ("int8", "int4")
FLOAT_FORMS = ("fp8", "nvfp4")
_WORDS = {"weights": WeightForm, "activations": ActivationForm, "cache": CacheForm}
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


class BuildRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What only a build decides.

    Attributes:
        summary: One line for people, where a build differs from a checkpoint.
        weight_type: Type of every floating tensor that is not quantized, as safetensors spells it; None where each
            keeps the checkpoint's own and is read in place.
        keeps_mxfp4: Experts that the checkpoint has in MXFP4 stay in its files.
        needs_mxfp4: The recipe is for targets with such experts.
        scales_columns: Columns of the target's matrices are divided by scales that calibration found.
        compute_element: What a batched graph computes in, named as in `onnx.TensorProto`. ONNX Runtime on a CPU
            computes in float32 whatever is stored.
        backends: Names of backends that take it.
        leaves: Kinds of the target's layers that engines cannot take in the recipe's form.
    """

    summary: str = ""
    weight_type: Literal["F32", "F16", "BF16"] | None = None
    keeps_mxfp4: bool = True
    needs_mxfp4: bool = False
    scales_columns: bool = False
    compute_element: Literal["FLOAT", "FLOAT16", "BFLOAT16"] = "BFLOAT16"
    backends: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()


class CalibrationRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What measures a recipe's scales.

    Attributes:
        preset: Name of modelopt's configuration.
        cache_preset: Name of modelopt's configuration of the cache, or empty.
        needs_experts: Nothing but experts is quantized.
    """

    preset: str
    cache_preset: str = ""
    needs_experts: bool = False


class LayerRecipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A recipe.

    Attributes:
        summary: One line for people.
        target: What becomes of a target.
        drafter: What becomes of a drafter.
        build: What a build decides besides; None where no build takes the recipe.
        calibration: What measures its scales; None where nothing does.
        name: File name without its ending.
    """

    summary: str
    target: TargetLayers = TargetLayers()
    drafter: DrafterLayers = DrafterLayers()
    build: BuildRules | None = None
    calibration: CalibrationRules | None = None
    name: str = ""


_KEYS = "; ".join(
    (
        f"[target] takes {', '.join(TargetLayers.__struct_fields__)}",
        f"[drafter] takes {', '.join(DrafterLayers.__struct_fields__)}",
        *(f"`{key}` is {', '.join(get_args(words))}" for key, words in _WORDS.items()),
    )
)


def load_layer_recipe(name_or_path: str) -> LayerRecipe:
    """A recipe of checkpoints by name, or from a TOML file.

    Raises:
        UsageError: There is none of that name, the file is no recipe, or only builds or calibrations take it.
    """
    if not name_or_path.endswith(".toml"):
        return load_shipped(name_or_path, LAYER_RECIPES)
    recipe = _read(Path(name_or_path))
    _refuse_integers(recipe)
    return recipe


@functools.cache
def load_shipped(name: str, among: tuple[str, ...]) -> LayerRecipe:
    """A recipe by name.

    Args:
        name: File name without its ending.
        among: The names that serve: `LAYER_RECIPES`, `BUILD_RECIPES` or `CALIBRATIONS`.

    Raises:
        UsageError: It is none of them.
    """
    if name not in among:
        file_hint = "; or the path of a .toml file" if among is LAYER_RECIPES else ""
        known = f"`{name}` is one, but not for this" if name in _EVERY_RECIPE else f"unknown recipe `{name}`"
        raise UsageError(known, hint=f"known: {', '.join(among)}{file_hint}")
    return _read(_FOLDER / f"{name}.toml")


def _read(path: Path) -> LayerRecipe:
    if not path.is_file():
        raise UsageError(f"`{path}` is no file", hint="give a recipe's name or its TOML file")
    with naming_os_errors(path):
        raw = path.read_bytes()
    try:
        document = tomllib.loads(raw.decode("utf-8-sig"))
        recipe = msgspec.convert({**document, "name": path.stem}, LayerRecipe)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"`{path}` is no recipe: {error}", hint="a recipe is a TOML file in UTF-8") from error
    except RecursionError as error:
        raise UsageError(f"`{path}` is no recipe: its values are nested too deeply", hint=_KEYS) from error
    except msgspec.ValidationError as error:
        raise UsageError(f"`{path}` is no recipe: {error}", hint=_KEYS) from error
    for part in ("target", "drafter"):
        _check_part(path, part, getattr(recipe, part))
    return recipe


def _refuse_integers(recipe: LayerRecipe) -> None:
    for part in (recipe.target, recipe.drafter):
        for kind, scheme in schemes(part).items():
            if scheme.weights in INTEGER_FORMS:
                raise UsageError(
                    f"recipe `{recipe.name}` makes `{kind}` {scheme.weights}, which only builds for a CPU read",
                    hint="take fp8 or nvfp4 for other engines, or `peagle-trt build --precision int4`",
                )


def algorithm_of(layers: TargetLayers | DrafterLayers) -> Algorithm | None:
    """ModelOpt's name for what a part of a recipe does; None where it quantizes nothing."""
    return common_algorithm({scheme.algorithm for scheme in schemes(layers).values()})


def common_algorithm(algorithms: Collection[Algorithm | None]) -> Algorithm | None:
    """ModelOpt's name for a checkpoint whose layers have these; None where nothing is quantized."""
    named = set(algorithms) - {None}
    if len(named) > 1:
        return MIXED
    return next(iter(named), None)


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
    if len(named) > 1 and isinstance(layers, DrafterLayers):
        (first, one), (second, other) = list(named.items())[:2]
        raise UsageError(
            f"`{path}`: `{part}.{one}` is {first} and `{part}.{other}` {second}",
            hint="layers of different algorithms are told apart by their names, and loaders name a head's anew; take "
            "one algorithm",
        )
    if isinstance(layers, TargetLayers) and layers.packed_experts == "cast" and layers.experts.weights != "nvfp4":
        raise UsageError(
            f"`{path}`: `target.packed_experts` casts to NVFP4, but `target.experts` has weights in "
            f"`{layers.experts.weights}`",
            hint='set both, or `packed_experts = "keep"`',
        )
