"""A target's tensors in Hugging Face's layout: planned, accounted for, and made lazy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.accounting import INVERSE_FREQUENCIES, Ignorable, account_for_tensors
from peagle_trt.readers.architectures import Architecture
from peagle_trt.readers.expert_weights import ExpertLayer, plan_experts
from peagle_trt.readers.llama_names import llama_name
from peagle_trt.readers.quantized import SCALES_LEFT_OUT, Quantization
from peagle_trt.readers.safetensors_file import map_bytes
from peagle_trt.readers.tensors import Weights
from peagle_trt.readers.weight_plan import Part, matrix_part, plain_part
from peagle_trt.spec import TargetConfig, TensorSpec
from peagle_trt.spec.names import target_shapes

_TIED_HEAD = Ignorable(
    pattern=r"lm_head\.weight", reason="a copy of the embedding table, which the output layer is tied to"
)
_MATRICES = tuple(f"{part}_proj" for part in ("q", "k", "v", "o", "gate", "up", "down"))


def read_weights(
    folder: Path,
    found: Mapping[str, TensorSpec],
    config: TargetConfig,
    architecture: Architecture,
    quantization: Quantization | None,
) -> Weights:
    """Match a folder's tensors with the ones a target needs; none is loaded.

    Args:
        folder: For messages.
        found: The folder's tensors by foreign name.
        config: The target.
        architecture: How its layers are spelled.
        quantization: How packed weights are spelled, or None where there are none.

    Raises:
        CheckpointError: A tensor is missing, misshapen, of the wrong type, or belongs to nothing.
    """
    ignorable: tuple[Ignorable, ...] = (INVERSE_FREQUENCIES,)
    if config.is_tied:
        ignorable += (_TIED_HEAD,)
        _refuse_untied_copy(folder, found)
    if quantization is not None:
        ignorable += SCALES_LEFT_OUT
    parts = _plan(config, architecture, found, quantization)
    expected = {name: wanted for part in parts.values() for name, wanted in part.expected.items()}
    used = account_for_tensors(folder, found, expected, ignorable)
    return Weights({name: part.build(used) for name, part in parts.items()})


def _plan(
    config: TargetConfig,
    architecture: Architecture,
    found: Mapping[str, TensorSpec],
    quantization: Quantization | None,
) -> dict[str, Part]:
    parts: dict[str, Part] = {}
    experts: dict[str, Part] = {}
    for layer in range(config.num_layers if config.experts is not None else 0):
        assert config.experts is not None
        where = ExpertLayer(
            experts=config.experts,
            hidden_size=config.hidden_size,
            router=f"model.layers.{layer}.mlp.{architecture.router_name}",
            stem=f"model.layers.{layer}.mlp.experts",
        )
        planned = plan_experts(where, found, quantization)
        experts |= {f"layers.{layer}.{name}": part for name, part in planned.items()}
    for name, shape in target_shapes(config).items():
        if name in experts:
            parts[name] = experts[name]
        elif name == "lm_head" or name.endswith(_MATRICES):
            parts[name] = matrix_part(_foreign_name(name).removesuffix(".weight"), shape, found, quantization)
        else:
            parts[name] = plain_part(_foreign_name(name), shape)
    return parts


def _foreign_name(name: str) -> str:
    return llama_name(name) if name == "lm_head" else f"model.{llama_name(name)}"


def _refuse_untied_copy(folder: Path, found: Mapping[str, TensorSpec]) -> None:
    head, table = found.get("lm_head.weight"), found.get("model.embed_tokens.weight")
    if head is None or table is None:
        return
    if head.dtype != table.dtype or head.shape != table.shape or not np.array_equal(map_bytes(head), map_bytes(table)):
        raise CheckpointError(
            f"`{folder}`: `tie_word_embeddings` is true, but `lm_head.weight` differs from `model.embed_tokens.weight`",
            hint="set `tie_word_embeddings` to false in config.json if the output layer is a layer of its own",
        )
