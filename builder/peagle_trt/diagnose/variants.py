"""Other ways in which a head's checkpoint may have been meant, each a change of one setting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from peagle_trt.spec import DrafterConfig, RopeConfig, TargetConfig
from peagle_trt.spec.target import default_aux_layer_ids

PUBLISHED = "as published"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One reading of a head.

    Attributes:
        name: What is different, in a few words.
        config: The head's configuration under it.
        remedy: What to change in the checkpoint's config.json if this reading is the right one.
    """

    name: str
    config: DrafterConfig
    remedy: str = ""


def list_variants(target: TargetConfig, drafter: DrafterConfig) -> list[Variant]:
    """The head as published, then every other reading that its tensors allow.

    Args:
        target: The target, for its depth and its rotary embedding.
        drafter: The head as its checkpoint reads.
    """
    published = Variant(name=PUBLISHED, config=drafter)
    others = (*_layer_variants(target, drafter), *_flag_variants(drafter), *_rope_variants(target, drafter))
    return [published, *_distinct(others, drafter)]


def _distinct(variants: tuple[Variant, ...], published: DrafterConfig) -> Iterator[Variant]:
    seen = [published]
    for variant in variants:
        if variant.config not in seen:
            seen.append(variant.config)
            yield variant


def _layer_variants(target: TargetConfig, drafter: DrafterConfig) -> Iterator[Variant]:
    """Both numberings and the usual layers.

    Source: vLLM counts the stream that enters a layer, SGLang, SpecForge and Model-Optimizer the layer's output; a head
    read by the other count still runs, and is accepted about half as often.
    """
    layers = drafter.aux_layer_ids
    usual = default_aux_layer_ids(target.num_layers)
    readings = (
        ("layers one higher", tuple(layer + 1 for layer in layers), "the config counts layer outputs"),
        ("layers one lower", tuple(layer - 1 for layer in layers), "the config counts one too high"),
        ("the usual layers", usual, "the config names other layers than the head was trained on"),
    )
    for name, ids, reason in readings:
        if len(ids) == len(layers) and ids[0] >= 0 and ids[-1] <= target.num_layers and sorted(set(ids)) == list(ids):
            yield Variant(
                name=f"{name} {list(ids)}",
                config=msgspec.structs.replace(drafter, aux_layer_ids=ids),
                remedy=f"{reason}; set `eagle_aux_hidden_state_layer_ids` to {list(ids)}",
            )


def _flag_variants(drafter: DrafterConfig) -> Iterator[Variant]:
    flipped = not drafter.norm_before_residual
    yield Variant(
        name=f"norm_before_residual {str(flipped).lower()}",
        config=msgspec.structs.replace(drafter, norm_before_residual=flipped),
        remedy=f"set `norm_before_residual` to {str(flipped).lower()}",
    )
    # A norm can be left out, but not be made up: its weights would have to be there.
    for flag, key in (("norm_before_fc", "norm_before_fc"), ("has_fc_norm", "fc_norm")):
        if getattr(drafter, flag):
            yield Variant(
                name=f"{key} false",
                config=msgspec.structs.replace(drafter, **{flag: False}),
                remedy=f"set `{key}` to false",
            )


def _rope_variants(target: TargetConfig, drafter: DrafterConfig) -> Iterator[Variant]:
    plain = RopeConfig(theta=drafter.rope.theta)
    readings = (
        ("the target's rotary embedding", target.rope, "copy the target's rotary settings"),
        ("rotary embedding without scaling", plain, "remove `rope_scaling`"),
        ("the target's rotary base without scaling", RopeConfig(theta=target.rope.theta), "set `rope_theta` alone"),
        ("rotary base 10000", RopeConfig(theta=10000.0), "set `rope_theta` to 10000"),
    )
    for name, rope, remedy in readings:
        yield Variant(name=name, config=msgspec.structs.replace(drafter, rope=rope), remedy=remedy)
