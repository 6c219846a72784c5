"""Where the reference takes its weights from: the checkpoints while a build is made, the build itself later."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peagle_trt.quant import StoredWeights
from peagle_trt.quant.in_place import load_experts
from peagle_trt.quant.packing import unpack
from peagle_trt.readers import DrafterCheckpoint, TargetCheckpoint, draft_to_target_ids
from peagle_trt.readers.safetensors_file import load_tensor
from peagle_trt.spec import DrafterConfig, TargetConfig
from peagle_trt.verify.weights import Load

_FUSED = {
    "q": ("qkv", 0), "k": ("qkv", 1), "v": ("qkv", 2), "gate": ("gate_up", 0), "up": ("gate_up", 1),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceSource:
    """Weights for the reference, by the names of `spec.names`.

    Attributes:
        load_target: Reads a tensor of the target.
        load_drafter: Reads a tensor of the drafter; what it shares is answered from the target.
        draft_to_target: [Vd] int64.
        is_rounded: They are those of the build, so that what its recipe rounds away from them is no error.
    """

    load_target: Load
    load_drafter: Load
    draft_to_target: NDArray[np.int64]
    is_rounded: bool


def checkpoint_source(target: TargetCheckpoint, drafter: DrafterCheckpoint) -> ReferenceSource:
    """Take the weights from the checkpoints, so that a fault of the writer shows too."""
    draft_to_target = draft_to_target_ids(drafter)

    def load_drafter(name: str) -> NDArray[np.generic]:
        if name == "embed_tokens" and not drafter.config.has_own_embeddings:
            return target.weights.load("embed_tokens")
        if name == "lm_head" and not drafter.config.has_own_lm_head:
            return target.weights.load("embed_tokens" if target.config.is_tied else "lm_head")[draft_to_target]
        return drafter.weights.load(name)

    return ReferenceSource(
        load_target=target.weights.load,
        load_drafter=load_drafter,
        draft_to_target=draft_to_target,
        is_rounded=False,
    )


def build_source(
    target: TargetConfig, drafter: DrafterConfig, stored_target: StoredWeights, stored_drafter: StoredWeights
) -> ReferenceSource:
    """Take the weights from a build, whose checkpoints may be long gone."""

    def load_target(name: str) -> NDArray[np.generic]:
        return _load_stored(stored_target, name, target)

    def load_drafter(name: str) -> NDArray[np.generic]:
        if name in ("embed_tokens", "lm_head") and name not in stored_drafter:
            is_table = name == "embed_tokens" or target.is_tied
            return load_target("embed_tokens" if is_table else "lm_head")
        return _load_stored(stored_drafter, name, drafter)

    draft_to_target = load_tensor(stored_drafter["draft_to_target"]).astype(np.int64)
    return ReferenceSource(
        load_target=load_target, load_drafter=load_drafter, draft_to_target=draft_to_target, is_rounded=True
    )


def _load_stored(stored: StoredWeights, name: str, config: TargetConfig | DrafterConfig) -> NDArray[np.generic]:
    """Read a tensor, cutting it out of a fused one where the build fused it, or stacking what it left apart."""
    stack = None if name in stored else load_experts(stored, name)
    if stack is not None:
        return stack
    prefix, _, part = name.rpartition(".")
    stem, _, kind = part.rpartition("_")
    if name in stored or not prefix or stem not in _FUSED or kind == "norm":
        return _load_matrix(stored, name)
    fused, index = _FUSED[stem]
    rows = _load_matrix(stored, f"{prefix}.{fused}_{kind}")
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    ends = [queries, queries + keys] if fused == "qkv" else [config.intermediate_size]
    part_rows: NDArray[np.generic] = np.split(rows, ends)[index]
    return part_rows


def _load_matrix(stored: StoredWeights, name: str) -> NDArray[np.generic]:
    unpacked = unpack(stored, name)
    return load_tensor(stored[name]) if unpacked is None else unpacked
