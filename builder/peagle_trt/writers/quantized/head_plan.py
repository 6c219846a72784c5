"""What a recipe makes of a head, in a dialect of somebody who loads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

from peagle_trt.errors import CheckpointError
from peagle_trt.quant.activation_scales import NO_SCALES, ActivationScales
from peagle_trt.quant.layer_kinds import FIXED, kind_of
from peagle_trt.quant.layer_recipes import DrafterLayers, LayerRecipe, schemes
from peagle_trt.readers import DrafterCheckpoint, TargetCheckpoint
from peagle_trt.readers.dialects import TRTLLM, TRTLLM_ONE_LAYER, VLLM, Dialect
from peagle_trt.writers import trtllm, vllm
from peagle_trt.writers.quantized.jobs import Job, Largest, Output, Piece
from peagle_trt.writers.quantized.plan import CheckpointPlan, finish, scale_notes, with_dtype
from peagle_trt.writers.quantized.planner import Planner
from peagle_trt.writers.spelled import SpelledHead, SpelledTensor, refuse_quantized_head

HeadDialect = Literal["vllm", "trtllm"]
HEAD_DIALECTS: tuple[HeadDialect, ...] = ("vllm", "trtllm")
_SPELLERS: dict[HeadDialect, Callable[[DrafterCheckpoint, TargetCheckpoint | None], SpelledHead]] = {
    "vllm": vllm.spell,
    "trtllm": trtllm.spell,
}
# Loaders number a drafter's layers on from the target's and prefix them as they like, so only wildcards reach them.
_HEAD_PATTERNS = {
    "embedding": ("embed_tokens", "*.embed_tokens"),
    "lm_head": ("lm_head", "*.lm_head"),
    "fc": ("fc", "*.fc"),
    "qkv": ("*.q_proj", "*.k_proj", "*.v_proj", "*.qkv_proj"),
    "o": ("*.o_proj",),
    "gate_up": ("*.gate_proj", "*.up_proj", "*.gate_up_proj"),
    "down": ("*.down_proj",),
}


def plan_head(
    drafter: DrafterCheckpoint,
    target: TargetCheckpoint | None,
    recipe: LayerRecipe,
    dialect: HeadDialect,
    scales: ActivationScales = NO_SCALES,
) -> CheckpointPlan:
    """What a recipe makes of a head.

    Args:
        drafter: The head, unquantized.
        target: Its target; needed where the dialect wants tensors that the head has from it.
        recipe: The recipe.
        dialect: Who is to load it.
        scales: As for `plan_target`.

    Raises:
        CheckpointError: As for `plan_target`; or the dialect cannot hold the head.
        UsageError: The target is needed and not given.
    """
    refuse_quantized_head(drafter)
    head = _SPELLERS[dialect](drafter, target)
    spelling = _spelling(dialect, drafter.config.num_layers)
    own = {spelling.foreign_name(name): name for name in drafter.weights}
    scales = _respelled(scales, drafter, spelling)
    planner = Planner(path=drafter.path, rules=recipe.drafter, scales=scales)
    for tensor in head.tensors:
        _plan_head_tensor(planner, drafter, own.get(tensor.name, ""), tensor)
    attentions = [
        spelling.foreign_name(f"layers.{index}.k_proj").removesuffix(".k_proj.weight")
        for index in range(drafter.config.num_layers)
    ]
    for attention in attentions if recipe.drafter.cache == "fp8" else ():
        planner.cache(attention)
    kinds = {layer.kind for layer in planner.layers if layer.kind in _HEAD_PATTERNS}
    plain = [kind for kind in _HEAD_PATTERNS if schemes(recipe.drafter)[kind].algorithm is None or kind not in kinds]
    left_out = [pattern for kind in plain for pattern in _HEAD_PATTERNS[kind]]
    document = dict(head.document)
    if recipe.drafter.fc.weights == "bf16":
        document = with_dtype(document)
    return finish(planner, recipe, recipe.drafter, document, left_out, head.notes + scale_notes(planner, scales))


def _plan_head_tensor(planner: Planner, drafter: DrafterCheckpoint, name: str, tensor: SpelledTensor) -> None:
    """One of a head's tensors; those that the dialect adds are written as the dialect makes them."""
    rules = planner.rules
    assert isinstance(rules, DrafterLayers)
    kind = kind_of(name)
    if not name or kind == FIXED:
        added_kind = "lm_head" if tensor.name.endswith("lm_head.weight") else kind
        if schemes(rules).get(added_kind) and schemes(rules)[added_kind].algorithm is not None:
            raise CheckpointError(
                f"`{planner.path}` has no `{tensor.name}` of its own that could be quantized",
                hint="leave `drafter.lm_head` out of the recipe",
            )
        planner.made(_as_job(tensor), added_kind)
        return
    spec = drafter.weights[name].spec
    if kind == "norms":
        planner.plain(spec, tensor.name, kind, tensor.shape, rules.norms)
    else:
        planner.matrix(spec, tensor.name.removesuffix(".weight"), kind)


def _as_job(tensor: SpelledTensor) -> Job:
    def run(_: Largest) -> Iterator[Piece]:
        for piece in tensor.pieces():
            yield 0, piece

    return Job(outputs=(Output(name=tensor.name, dtype=tensor.dtype, shape=tensor.shape),), pieces=run)


def _respelled(scales: ActivationScales, drafter: DrafterCheckpoint, spelling: Dialect) -> ActivationScales:
    """Scales by a dialect's names; a file has vLLM's, whoever is to load the head."""
    modules = {
        VLLM.foreign_name(name).removesuffix(".weight"): spelling.foreign_name(name).removesuffix(".weight")
        for name in drafter.weights
    }
    parts = ((*name.rpartition("."), value) for name, value in scales.values.items())
    values = {f"{modules.get(module, module)}.{suffix}": value for module, _, suffix, value in parts}
    return replace(scales, values=values)


def _spelling(dialect: HeadDialect, num_layers: int) -> Dialect:
    if dialect == "vllm":
        return VLLM
    return TRTLLM_ONE_LAYER if num_layers == 1 else TRTLLM
