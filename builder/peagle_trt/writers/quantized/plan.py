"""What a recipe makes of a whole checkpoint, before anything is read but headers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from peagle_trt.errors import CheckpointError
from peagle_trt.quant.activation_scales import (
    NO_SCALES,
    ActivationScales,
    refuse_any,
    refuse_no_format,
    refuse_other_format,
    refuse_unknown,
)
from peagle_trt.quant.layer_kinds import kind_of
from peagle_trt.quant.layer_recipes import (
    MIXED,
    Algorithm,
    CacheForm,
    DrafterLayers,
    LayerRecipe,
    TargetLayers,
    common_algorithm,
    refuse_no_match,
    schemes,
)
from peagle_trt.readers import TargetCheckpoint
from peagle_trt.readers.json_file import read_object
from peagle_trt.readers.shards import read_folder_tensors
from peagle_trt.readers.tensors import LazyTensor
from peagle_trt.spec import TensorSpec
from peagle_trt.writers.fused import fused_name
from peagle_trt.writers.quantized.documents import config_twin, quant_file
from peagle_trt.writers.quantized.jobs import Job
from peagle_trt.writers.quantized.layers import LayerPlan
from peagle_trt.writers.quantized.planner import Planner, Rounded, Source
from peagle_trt.writers.spelled import already_quantized


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlan:
    """A quantized checkpoint that has not been written yet.

    Attributes:
        source: Folder that it is made from.
        recipe: What it is made by.
        algorithm: ModelOpt's name of it; None where nothing is quantized anew.
        layers: What becomes of each layer.
        jobs: What writes its tensors, in order.
        groups: What shares a scale, by the group's name.
        finite: Tensors that are only looked at for values that are no numbers.
        halved: Tensors of another type that become bfloat16.
        rounded: Layers whose numbers are rounded.
        document: Its config.json.
        quant_document: Its hf_quant_config.json; None where there is none.
        notes: What its user must know, a sentence each.
    """

    source: Path
    recipe: LayerRecipe
    algorithm: Algorithm | None
    layers: tuple[LayerPlan, ...]
    jobs: tuple[Job, ...]
    groups: Mapping[str, tuple[Source, ...]]
    finite: tuple[TensorSpec, ...]
    halved: tuple[TensorSpec, ...]
    rounded: tuple[Rounded, ...]
    document: Mapping[str, object]
    quant_document: Mapping[str, object] | None
    notes: tuple[str, ...]

    @property
    def written_bytes(self) -> int:
        """Bytes of all its tensors."""
        return sum(job.length_bytes for job in self.jobs)

    @property
    def read_bytes(self) -> int:
        """Bytes of the layers that it is made from."""
        return sum(layer.stored_bytes for layer in self.layers)


def plan_target(target: TargetCheckpoint, recipe: LayerRecipe, scales: ActivationScales = NO_SCALES) -> CheckpointPlan:
    """What a recipe makes of a target.

    Args:
        target: The target, unquantized but for experts in MXFP4.
        recipe: The recipe.
        scales: Of activations and caches; constant where nothing is given.

    Raises:
        CheckpointError: It is quantized already, rows cannot be cut into blocks, a scale is missing, no loader would
            take the result, or the recipe matches nothing.
    """
    if not target.path.is_dir():
        raise CheckpointError(
            f"`{target.path}` is a GGUF file, whose layout no loader of quantized checkpoints reads",
            hint="give the model's folder in Hugging Face's layout",
        )
    planner = Planner(path=target.path, rules=recipe.target, scales=scales)
    stored = read_folder_tensors(target.path)
    for name, lazy in target.weights.items():
        _plan_tensor(planner, recipe.target, name, lazy, stored)
    _plan_cache(planner, recipe.target.cache, target.config.num_layers, "model.layers.{}.self_attn")
    left_out = [_without_experts(module) for module, is_quantized in planner.modules.items() if not is_quantized]
    document = dict(read_object(target.path / "config.json").values)
    keeps_packed = any(layer.weights == "mxfp4" for layer in planner.layers)
    if keeps_packed:
        _refuse_beside_packed(planner, recipe.target.cache)
    else:
        document.pop("quantization_config", None)
    if any(scheme.weights == "bf16" for scheme in schemes(recipe.target).values()):
        document = with_dtype(document)
    if target.config.is_tied:
        left_out.append("lm_head")
    notes = _target_notes(planner, recipe, scales)
    return finish(planner, recipe, recipe.target, document, list(dict.fromkeys(left_out)), notes)


def _plan_tensor(
    planner: Planner, rules: TargetLayers, name: str, lazy: LazyTensor, stored: Mapping[str, TensorSpec]
) -> None:
    kind = kind_of(name)
    if lazy.packed is not None and lazy.packed.form != "mxfp4":
        raise already_quantized(lazy.packed.codes)
    if lazy.packed is not None:
        parameter = lazy.packed.codes.name.removesuffix("_blocks")
        planner.packed_stack(lazy.packed, parameter, kind, rules.packed_experts)
        return
    for part in lazy.parts or (lazy,):
        if part.packed is not None:
            raise already_quantized(part.packed.codes)
        spec = part.spec if part.spec.location is not None else stored[part.spec.name]
        if kind == "norms":
            planner.plain(spec, spec.name, kind, spec.shape, rules.norms)
        elif spec.name.endswith(".weight"):
            planner.matrix(spec, spec.name.removesuffix(".weight"), kind)
        else:
            planner.stack(spec, spec.name, kind)


def _plan_cache(planner: Planner, cache: CacheForm, num_layers: int, attention: str) -> None:
    for layer in range(num_layers if cache == "fp8" else 0):
        planner.cache(attention.format(layer))


def _refuse_beside_packed(planner: Planner, cache: CacheForm) -> None:
    """Refuse what no loader takes beside MXFP4 experts, whose checkpoint says nothing about other layers."""
    changed = next((layer.module for layer in planner.layers if layer.weights in ("fp8", "nvfp4")), None)
    if changed is not None:
        raise CheckpointError(
            f"`{planner.path}`: the recipe keeps the experts in MXFP4 and quantizes `{changed}`, which no loader takes "
            "in one checkpoint",
            hint="take `mxfp4`, which keeps all, or `nvfp4`, which turns the experts into NVFP4 without a change",
        )
    if cache != "none":
        raise CheckpointError(
            f"`{planner.path}`: a checkpoint with MXFP4 experts has no place for scales of a cache",
            hint="set the cache's type where it is served",
        )


def finish(
    planner: Planner,
    recipe: LayerRecipe,
    rules: TargetLayers | DrafterLayers,
    document: Mapping[str, object],
    left_out: list[str],
    notes: tuple[str, ...],
) -> CheckpointPlan:
    """The plan of what a planner has collected.

    Args:
        planner: What has been collected.
        recipe: The recipe.
        rules: The part of it that was applied.
        document: config.json, without a description of what is quantized anew.
        left_out: Patterns of modules that stay as they are, for loaders.
        notes: What the checkpoint's user must know.

    Raises:
        CheckpointError: The recipe matches nothing, splits what loaders fuse, or the scales do not fit.
        UsageError: There are scales, and the recipe leaves activations and caches alone.
    """
    if not planner.is_matched:
        raise refuse_no_match(recipe, planner.path)
    planner.require_whole_groups()
    refuse_unknown(planner.scales, planner.modules)
    if rules.cache == "none" and all(layer.activations == "none" for layer in planner.layers):
        refuse_any(planner.scales, recipe.name)
    algorithm = common_algorithm(planner.algorithm_of_layers.values())
    quant_document = None
    if algorithm is not None:
        if algorithm == MIXED:
            refuse_no_format(planner.scales)
        else:
            refuse_other_format(planner.scales, algorithm)
        layers = planner.algorithm_of_layers
        quant_document = quant_file(algorithm, rules.cache, left_out, layers)
        document = {**document, "quantization_config": config_twin(algorithm, rules.cache, left_out, layers)}
    elif rules.cache != "none":
        raise CheckpointError(
            f"`{planner.path}`: nothing is quantized but the cache, which no loader reads from a checkpoint",
            hint="set the cache's type where it is served",
        )
    return CheckpointPlan(
        source=planner.path,
        recipe=recipe,
        algorithm=algorithm,
        layers=tuple(planner.layers),
        jobs=tuple(planner.jobs),
        groups={name: tuple(sources) for name, sources in planner.groups.items()},
        finite=tuple(planner.finite),
        halved=tuple(planner.halved),
        rounded=tuple(planner.rounded),
        document=document,
        quant_document=quant_document,
        notes=notes,
    )


def _target_notes(planner: Planner, recipe: LayerRecipe, scales: ActivationScales) -> tuple[str, ...]:
    notes = []
    packed = [layer for layer in planner.layers if layer.kind == "experts" and planner.groups.get(layer.module)]
    if any(not isinstance(planner.groups[layer.module][0], TensorSpec) for layer in packed):
        notes.append("the experts' MXFP4 becomes NVFP4 without a change of any number, and does not get smaller")
    elif recipe.target.packed_experts == "keep" and any(layer.weights == "mxfp4" for layer in planner.layers):
        notes.append("the experts' MXFP4 is kept byte for byte")
    return (*notes, *scale_notes(planner, scales))


def scale_notes(planner: Planner, scales: ActivationScales) -> tuple[str, ...]:
    """What to say where nobody measured activations or a cache."""
    has_activations = any(layer.activations != "none" for layer in planner.layers)
    has_cache = planner.rules.cache != "none"
    if scales.path is not None or not (has_activations or has_cache):
        return ()
    what = " and ".join(
        word for word, is_there in (("activations", has_activations), ("the cache", has_cache)) if is_there
    )
    return (f"scales of {what} are the constant 1, for no file of scales was given",)


def with_dtype(document: Mapping[str, object]) -> dict[str, object]:
    """A config.json whose weights are bfloat16."""
    key = "torch_dtype" if "torch_dtype" in document else "dtype"
    return {**document, key: "bfloat16"}


def _without_experts(module: str) -> str:
    """A pattern for all experts of a layer, or the module itself."""
    return f"{fused_name(module)}*" if ".experts." in module else module
