"""Experts as configurations describe them.

Source: transformers 5 `configuration_gpt_oss.py`, `configuration_qwen3_moe.py` and the models beside them.
"""

from __future__ import annotations

from typing import Literal

from peagle_trt.readers.json_file import Fields
from peagle_trt.readers.ranges import LAYER_ID, SIZE, Range
from peagle_trt.spec import ExpertsConfig

ExpertsKind = Literal["gpt_oss", "qwen3_moe"]
_SLOPE = Range(low=0, high=1e3, excludes_low=True)
_LIMIT = Range(low=0, high=1e6, excludes_low=True)
_ONE = Range(low=1, high=1)
_NONE = Range(low=0, high=0)


def read_experts(config: Fields, kind: ExpertsKind) -> ExpertsConfig:
    """The experts of every layer.

    Raises:
        CheckpointError: A setting is missing, or there are layers without experts, or experts of another kind.
    """
    return _read_gpt_oss(config) if kind == "gpt_oss" else _read_qwen3_moe(config)


def _read_gpt_oss(config: Fields) -> ExpertsConfig:
    count = _read_either(config, "num_local_experts", "num_experts", SIZE)
    return ExpertsConfig(
        num_experts=count,
        experts_per_token=_read_chosen(config, count),
        intermediate_size=config.integer("intermediate_size", within=SIZE),
        activation="clamped_swiglu",
        alpha=config.number("swiglu_alpha", 1.702, within=_SLOPE),
        limit=config.number("swiglu_limit", 7.0, within=_LIMIT),
        normalizes_shares=True,
        has_router_bias=True,
        has_expert_bias=True,
    )


def _read_qwen3_moe(config: Fields) -> ExpertsConfig:
    config.integer("decoder_sparse_step", 1, within=_ONE)
    config.integer("shared_expert_intermediate_size", 0, within=_NONE)
    if config.integers("mlp_only_layers", within=LAYER_ID):
        raise config.refuse("mlp_only_layers", "empty", hint="every layer must have experts")
    count = _read_either(config, "num_experts", "num_local_experts", SIZE)
    return ExpertsConfig(
        num_experts=count,
        experts_per_token=_read_chosen(config, count),
        intermediate_size=config.integer("moe_intermediate_size", within=SIZE),
        normalizes_shares=config.flag("norm_topk_prob"),
    )


def _read_chosen(config: Fields, count: int) -> int:
    """Experts that a token is sent to."""
    return _read_either(config, "num_experts_per_tok", "experts_per_token", Range(low=1, high=count))


def _read_either(config: Fields, key: str, other_key: str, within: Range) -> int:
    """A number that files of different ages spell differently, and some in both ways."""
    other = config.optional_integer(other_key, within=within)
    value = config.integer(key, other, within=within)
    if other not in (None, value):
        raise config.refuse(other_key, f"equal to `{key}`, {value}")
    return value
