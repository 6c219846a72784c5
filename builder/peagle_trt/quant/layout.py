"""Which tensors a build stores, and how each is made from the checkpoints.

Stored names are those of `spec.names`, with q/k/v fused to `qkv_proj` and gate/up to `gate_up_proj`: one matrix product
reads its input once. Letters: H hidden size, A auxiliary states, Ht hidden size of the target, D draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from peagle_trt.errors import CheckpointError
from peagle_trt.quant.activation_scales import (
    NO_SCALES,
    ActivationScales,
    refuse_columns,
    refuse_other_format,
    refuse_unknown,
)
from peagle_trt.quant.halves import HALF_TYPES, to_half
from peagle_trt.quant.layer_kinds import kind_of
from peagle_trt.quant.layer_recipes import FLOAT_FORMS, DrafterLayers, LayerScheme, TargetLayers, algorithm_of, schemes
from peagle_trt.quant.packing import StoredTensor, divide_columns, is_packed_by, pack
from peagle_trt.quant.registry import Recipe, find_recipe
from peagle_trt.quant.scales_file import INPUT_SCALE, PRE_QUANT_SCALE
from peagle_trt.readers import DrafterCheckpoint, TargetCheckpoint, draft_to_target_ids
from peagle_trt.readers.llama_names import llama_name
from peagle_trt.readers.safetensors_file import raw_rows
from peagle_trt.readers.tensors import Weights

_FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "qkv_bias": ("q_bias", "k_bias", "v_bias"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "gate_up_bias": ("gate_bias", "up_bias"),
}
_FUSED_ROWS = 256
_LINEAR_KINDS = ("lm_head", "fc", "qkv", "o", "gate_up", "down")
_EXPERTS = ".experts."
_PARTS = {part: fused for fused, parts in _FUSED.items() for part in parts}
# Folded into `fused_mask_hidden`, written as `draft_to_target`, or gathered into the drafter's own output layer.
_REPLACED_IN_DRAFTER = ("mask_hidden", "d2t", "lm_head")


def target_layout(
    target: TargetCheckpoint,
    precision: str = "fp32",
    scales: ActivationScales = NO_SCALES,
    *,
    left_out: frozenset[str] = frozenset(),
) -> list[StoredTensor]:
    """Every tensor of `engine/target.safetensors`.

    Args:
        target: The target.
        precision: A recipe that writes weights.
        scales: Calibrated scales of its activations; those of its cache are not read.
        left_out: Stored names of matrices that are not quantized, whatever the recipe says.

    Raises:
        CheckpointError: The recipe cannot store a tensor, or the scales are of another model or number format.
    """
    recipe = find_recipe(precision)
    kept = kept_in_place(target, precision)
    names = [name for name in target.weights if name not in kept]
    _refuse_second_rounding(recipe.name, target.weights, {name: recipe.target_scheme(name) for name in names})
    _require_match(recipe, target, [*names, *kept])
    _check_scales(scales, recipe, recipe.target, {f"model.{module}" for module in _modules(names)})
    if recipe.scales_columns and not scales.columns:
        raise CheckpointError(
            f"precision `{precision}` divides weights by AWQ's scales of their columns, and "
            f"{f'`{scales.path}` holds none' if scales.path else 'no file of scales is given'}",
            hint="scripts/calibrate TARGET --recipe nvfp4-awq writes them; give its file with --scales",
        )
    stored: list[StoredTensor] = []
    for entry in target_entries(target, precision):
        if entry.name not in left_out:
            stored += _store(entry, recipe, recipe.target_scheme(entry.name), scales, "model.")
        elif not (entry.name == "lm_head" and target.config.is_tied):
            stored.append(_as_stored(entry, recipe.weight_type))
    return stored


def target_entries(target: TargetCheckpoint, precision: str) -> list[StoredTensor]:
    """What `target_layout` stores, as float32; a tied output layer that is packed is among it beside the table."""
    kept = kept_in_place(target, precision)
    entries = _fuse(target.weights, [name for name in target.weights if name not in kept])
    if target.config.is_tied and is_packed_by(find_recipe(precision).target.lm_head):
        # The rows that are looked up stay as they are.
        entries.append(_concatenated("lm_head", target.weights, ("embed_tokens",)))
    return entries


def kept_in_place(target: TargetCheckpoint, precision: str) -> list[str]:
    """Tensors that a recipe which writes weights still leaves in the checkpoint's files: experts in MXFP4."""
    if not find_recipe(precision).keeps_mxfp4:
        return []
    packed = ((name, tensor.packed) for name, tensor in target.weights.items())
    return [name for name, form in packed if form is not None and form.form == "mxfp4"]


def drafter_layout(
    drafter: DrafterCheckpoint,
    target: TargetCheckpoint,
    precision: str = "fp32",
    scales: ActivationScales = NO_SCALES,
    *,
    left_out: frozenset[str] = frozenset(),
) -> list[StoredTensor]:
    """Every tensor of `engine/drafter.safetensors`.

    A full-vocabulary output layer that is the target's is left out: the graph points into the target's file.

    Args:
        drafter: The drafter.
        target: Its target.
        precision: A recipe that writes weights.
        scales: Calibrated scales of the drafter's activations; those of its cache are not read.
        left_out: As for `target_layout`.

    Raises:
        CheckpointError: As for `target_layout`.
    """
    recipe = find_recipe(precision)
    names = kept_drafter_names(drafter)
    _refuse_second_rounding(recipe.name, drafter.weights, {name: recipe.drafter_scheme(name) for name in names})
    _check_scales(scales, recipe, recipe.drafter, {*_modules(names), "lm_head"})
    stored: list[StoredTensor] = []
    for entry in drafter_entries(drafter, target):
        if entry.name in left_out:
            stored.append(_as_stored(entry, recipe.weight_type))
        else:
            stored += _store(entry, recipe, recipe.drafter_scheme(entry.name), scales, "")
    return [*stored, *computed_drafter_tensors(drafter)]


def drafter_entries(drafter: DrafterCheckpoint, target: TargetCheckpoint) -> list[StoredTensor]:
    """What `drafter_layout` stores of the checkpoints, as float32; what is computed comes beside it."""
    entries = _fuse(drafter.weights, kept_drafter_names(drafter))
    if stores_output_layer(drafter):
        rows = StoredTensor(
            name="lm_head",
            dtype="F32",
            shape=(drafter.config.draft_vocab_size, drafter.config.hidden_size),
            produce=lambda: _output_rows(drafter, target),
        )
        entries.append(rows)
    return entries


def kept_drafter_names(drafter: DrafterCheckpoint) -> list[str]:
    """Tensors of a head that a build keeps as they are, its output layer aside."""
    return [name for name in drafter.weights if name not in _REPLACED_IN_DRAFTER]


def computed_drafter_tensors(drafter: DrafterCheckpoint) -> list[StoredTensor]:
    """What no head stores in the form a graph needs: the masked slots' fused state, and draft ids as target ids.

    A plain EAGLE-3 head has no masked slots.
    """
    config = drafter.config
    mask = StoredTensor(
        name="fused_mask_hidden", dtype="F32", shape=(config.hidden_size,), produce=lambda: fuse_mask_hidden(drafter)
    )
    ids = StoredTensor(
        name="draft_to_target",
        dtype="I64",
        shape=(config.draft_vocab_size,),
        produce=lambda: draft_to_target_ids(drafter),
    )
    return [mask, ids] if config.is_parallel else [ids]


def gathered_output_layer(drafter: DrafterCheckpoint, target: TargetCheckpoint) -> StoredTensor:
    """The rows of the target's output layer that a head proposes from, in the type they are stored in."""
    spec = target.weights[_output_table(target)].spec
    return StoredTensor(
        name="lm_head",
        dtype=spec.dtype,
        shape=(drafter.config.draft_vocab_size, *spec.shape[1:]),
        produce=lambda: raw_rows(spec)[draft_to_target_ids(drafter)],
    )


def stores_output_layer(drafter: DrafterCheckpoint) -> bool:
    """Whether the drafter's output layer differs from the target's, and so needs bytes of its own."""
    return drafter.config.has_own_lm_head or not _proposes_all_in_order(drafter)


def fuse_mask_hidden(drafter: DrafterCheckpoint) -> NDArray[np.float32]:
    """What every masked slot's hidden state is once `fc` has read it.

    Returns:
        [H] float32, computed in float64.

    Source: vLLM 0.32 `combine_hidden_states` over `mask_hidden`: optional norms, then `fc`.
    """
    config, weights = drafter.config, drafter.weights
    mask = weights.load("mask_hidden").reshape(-1).astype(np.float64)
    if config.norm_before_fc:
        mask = _rms_norm(mask, weights.load("input_norm"), config.rms_norm_eps)
    if config.has_fc_norm:
        chunks = np.split(mask, len(config.aux_layer_ids))
        normed = (_rms_norm(c, weights.load(f"fc_norm.{i}"), config.rms_norm_eps) for i, c in enumerate(chunks))
        mask = np.concatenate(list(normed))
    rows = weights.load("fc")
    # In blocks: `fc` of gpt-oss takes 0.1 GB in float32 and would take 0.2 more in float64.
    blocks = [rows[first : first + _FUSED_ROWS].astype(np.float64) @ mask for first in range(0, len(rows), _FUSED_ROWS)]
    fused: NDArray[np.float64] = np.concatenate(blocks)
    return fused.astype(np.float32)


def _store(
    tensor: StoredTensor, recipe: Recipe, scheme: LayerScheme, scales: ActivationScales, prefix: str
) -> list[StoredTensor]:
    """What a tensor of float32 becomes.

    Args:
        tensor: It, by its stored name.
        recipe: The recipe.
        scheme: What the recipe makes of it.
        scales: Scales by the names of a Hugging Face checkpoint.
        prefix: Before a module's name there.
    """
    if not is_packed_by(scheme):
        return [_as_stored(tensor, "BF16" if scheme.weights == "bf16" else recipe.weight_type)]
    modules = _measured_modules(tensor, scheme, scales, prefix)
    kept: list[StoredTensor] = []
    columns = column_scales(tensor, recipe, scheme, scales, prefix)
    if columns is not None:
        tensor, divisors = divide_columns(tensor, columns)
        kept.append(divisors)
    input_scale = scales.shared([f"{module}{INPUT_SCALE}" for module in modules]) if modules else None
    return [*pack(tensor, scheme, input_scale), *kept]


def column_scales(
    tensor: StoredTensor, recipe: Recipe, scheme: LayerScheme, scales: ActivationScales, prefix: str
) -> NDArray[np.float32] | None:
    """What a matrix's columns are divided by before they are rounded, or None; arguments as for `_store`."""
    modules = _measured_modules(tensor, scheme, scales, prefix)
    if not (modules and recipe.scales_columns and scales.columns):
        return None
    return scales.shared_columns([f"{module}{PRE_QUANT_SCALE}" for module in modules], tensor.shape[1])


def _measured_modules(tensor: StoredTensor, scheme: LayerScheme, scales: ActivationScales, prefix: str) -> list[str]:
    """The layers of a checkpoint whose measured scales a matrix takes; none where nothing was measured."""
    is_measured = scales.path is not None and scheme.activations != "none" and len(tensor.shape) == 2
    return [f"{prefix}{module}" for module in _modules(_parts_of(tensor.name))] if is_measured else []


def _refuse_second_rounding(precision: str, weights: Weights, wanted: Mapping[str, LayerScheme]) -> None:
    """Refuse to bring weights that were rounded to one format of floats into another."""
    for name, scheme in wanted.items():
        tensor = weights[name]
        packed = tensor.packed or next((part.packed for part in tensor.parts if part.packed), None)
        if packed is not None and scheme.weights in FLOAT_FORMS and packed.form != scheme.weights:
            raise CheckpointError(
                f"`{packed.codes.name}` is quantized to {packed.form} already, and precision `{precision}` would round "
                f"it a second time, to {scheme.weights}",
                hint=f"build with --precision bf16, with a recipe of {packed.form}, or from the checkpoint before that",
            )


def _require_match(recipe: Recipe, target: TargetCheckpoint, names: Iterable[str]) -> None:
    """Refuse a recipe that would leave everything as it is: it was meant for another target."""
    packed = (tensor.packed for tensor in target.weights.values())
    if recipe.needs_mxfp4 and not any(form is not None and form.form == "mxfp4" for form in packed):
        raise CheckpointError(
            f"precision `{recipe.name}` keeps experts in MXFP4, and `{target.path}` has none",
            hint="build with --precision bf16",
        )
    packs_target = any(is_packed_by(scheme) for scheme in schemes(recipe.target).values())
    if packs_target and not any(is_packed_by(recipe.target_scheme(name)) for name in names):
        wanted = ", ".join(kind for kind, scheme in schemes(recipe.target).items() if is_packed_by(scheme))
        raise CheckpointError(
            f"precision `{recipe.name}` matches no layer of `{target.path}`: it quantizes {wanted}",
            hint="build with --precision nvfp4 or nvfp4-mlp",
        )


def _check_scales(
    scales: ActivationScales, recipe: Recipe, layers: TargetLayers | DrafterLayers, modules: set[str]
) -> None:
    if scales.path is None:
        return
    if not recipe.scales_columns:
        refuse_columns(scales)
    # Experts' activations are left alone, so their scales are of no use and no harm.
    values = {name: value for name, value in scales.values.items() if _EXPERTS not in name}
    columns = {name: value for name, value in scales.columns.items() if _EXPERTS not in name}
    refuse_unknown(replace(scales, values=values, columns=columns), modules)
    algorithm = algorithm_of(layers)
    if algorithm is not None:
        refuse_other_format(scales, algorithm)


def _modules(names: Iterable[str]) -> list[str]:
    """Linear layers of a Hugging Face checkpoint, by our names of their matrices."""
    linear = (name for name in names if kind_of(name) in _LINEAR_KINDS)
    return [name if name == "fc" else llama_name(name).removesuffix(".weight") for name in linear]


def _as_stored(tensor: StoredTensor, dtype: str | None) -> StoredTensor:
    """A tensor of float32 in another type."""
    if dtype is None or dtype not in HALF_TYPES:
        return tensor
    return replace(tensor, dtype=dtype, produce=lambda: to_half(tensor.name, tensor.produce(), dtype))


def _fuse(weights: Weights, names: Iterable[str]) -> list[StoredTensor]:
    stored: dict[str, StoredTensor] = {}
    for name in names:
        prefix, dot, part = name.rpartition(".")
        if dot and part in _PARTS:
            name = f"{prefix}.{_PARTS[part]}"
        stored.setdefault(name, _concatenated(name, weights, _parts_of(name)))
    return list(stored.values())


def _parts_of(name: str) -> tuple[str, ...]:
    """Our names of what a stored tensor is made of."""
    prefix, _, stem = name.rpartition(".")
    return tuple(f"{prefix}.{part}" for part in _FUSED[stem]) if stem in _FUSED else (name,)


def _concatenated(name: str, weights: Weights, parts: tuple[str, ...]) -> StoredTensor:
    rows = sum(weights[part].shape[0] for part in parts)
    return StoredTensor(
        name=name,
        dtype="F32",
        shape=(rows, *weights[parts[0]].shape[1:]),
        produce=lambda: (
            weights.load(parts[0]) if len(parts) == 1 else np.concatenate([weights.load(part) for part in parts])
        ),
    )


def _output_rows(drafter: DrafterCheckpoint, target: TargetCheckpoint) -> NDArray[np.generic]:
    if drafter.config.has_own_lm_head:
        return drafter.weights.load("lm_head")
    return target.weights.load(_output_table(target))[draft_to_target_ids(drafter)]


def _output_table(target: TargetCheckpoint) -> str:
    return "embed_tokens" if target.config.is_tied else "lm_head"


def _proposes_all_in_order(drafter: DrafterCheckpoint) -> bool:
    """Whether draft ids are target ids. Published heads carry a map even where it changes nothing."""
    config = drafter.config
    if not config.has_vocabulary_map or config.draft_vocab_size != config.vocab_size:
        return not config.has_vocabulary_map
    return np.array_equal(draft_to_target_ids(drafter), np.arange(config.vocab_size))


def _rms_norm(values: NDArray[np.float64], weight: NDArray[np.generic], eps: float) -> NDArray[np.float64]:
    normed: NDArray[np.float64] = values / np.sqrt(np.mean(values * values) + eps) * weight.astype(np.float64)
    return normed
