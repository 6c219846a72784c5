"""Where the reference takes its weights from: the checkpoints while a build is made, the build itself later.

Integers and NVFP4 weights are an exception. A model whose weights were rounded so far is not the checkpoint's any more,
so a build is compared with its own rounded weights even while it is made, each of which is first compared with the
checkpoint's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peagle_trt.errors import VerificationError
from peagle_trt.quant import StoredWeights
from peagle_trt.quant.halves import HALF_TYPES
from peagle_trt.quant.in_place import load_experts
from peagle_trt.quant.packing import BLOCK_SCALES
from peagle_trt.quant.unpacking import integer_bits, load_unpacked
from peagle_trt.readers import DrafterCheckpoint, TargetCheckpoint, draft_to_target_ids
from peagle_trt.readers.safetensors_file import load_tensor
from peagle_trt.spec import DrafterConfig, TargetConfig
from peagle_trt.verify.tolerances import LARGEST_ROUNDING
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


def rounded_source(
    target: TargetCheckpoint, drafter: DrafterCheckpoint, stored_target: StoredWeights, stored_drafter: StoredWeights
) -> ReferenceSource:
    """Take the weights from the checkpoints, but those that a build rounds from the build.

    Raises:
        VerificationError: When a matrix is loaded: it is not what the checkpoint's may be rounded to.
    """
    plain = checkpoint_source(target, drafter)
    rounded = build_source(target.config, drafter.config, stored_target, stored_drafter)

    def load_target(name: str) -> NDArray[np.generic]:
        if name == "lm_head" and target.config.is_tied:
            if integer_bits(stored_target, name) is None:
                raise KeyError(name)
            return _checked(stored_target, name, plain.load_target("embed_tokens"), rounded.load_target)
        return _checked(stored_target, name, plain.load_target(name), rounded.load_target)

    def load_drafter(name: str) -> NDArray[np.generic]:
        is_shared = name in ("embed_tokens", "lm_head") and name not in stored_drafter
        holder, place = (stored_target, name) if is_shared else (stored_drafter, name)
        if is_shared and name not in stored_target:
            place = "embed_tokens"
        if name == "mask_hidden":
            # What it is fused to is computed before `fc` is rounded.
            raise KeyError(name)
        if name == "fused_mask_hidden":
            return rounded.load_drafter(name)
        return _checked(holder, place, plain.load_drafter(name), lambda _: rounded.load_drafter(name))

    return ReferenceSource(
        load_target=load_target, load_drafter=load_drafter, draft_to_target=plain.draft_to_target, is_rounded=True
    )


def _checked(stored: StoredWeights, name: str, plain: NDArray[np.generic], load: Load) -> NDArray[np.generic]:
    """A matrix as a build rounded it, compared with what it was made of; others as they are."""
    form = _rounded_form(stored, _stored_name(stored, name))
    if form is None:
        return plain
    found, wanted = (each.astype(np.float32, copy=False) for each in (load(name), plain))
    error = float(np.linalg.norm(found - wanted) / (np.linalg.norm(wanted) or 1.0))
    if not error <= LARGEST_ROUNDING[form]:
        raise VerificationError(
            f"`{name}` was rounded to {form} with a relative error of {error:.2g}, "
            f"and {LARGEST_ROUNDING[form]} is the most that rounding can make",
            hint="the build is not published; this is a fault of peagle-trt, please report it",
        )
    return found


def _rounded_form(stored: StoredWeights, name: str) -> str | None:
    """What a build rounds a stored matrix to, as `LARGEST_ROUNDING` calls it; None where it keeps or moves it."""
    bits = integer_bits(stored, name)
    if bits is not None:
        return f"{bits} bits"
    if f"{name}{BLOCK_SCALES}" in stored:
        return "NVFP4"
    return stored[name].dtype if name in stored and stored[name].dtype in HALF_TYPES else None


def build_source(
    target: TargetConfig, drafter: DrafterConfig, stored_target: StoredWeights, stored_drafter: StoredWeights
) -> ReferenceSource:
    """Take the weights from a build, whose checkpoints may be long gone."""

    def load_target(name: str) -> NDArray[np.generic]:
        return _load_stored(stored_target, name, target)

    def load_drafter(name: str) -> NDArray[np.generic]:
        if name in ("embed_tokens", "lm_head") and name not in stored_drafter:
            is_table = name == "embed_tokens" or (target.is_tied and "lm_head" not in stored_target)
            return load_target("embed_tokens" if is_table else "lm_head")
        return _load_stored(stored_drafter, name, drafter)

    draft_to_target = load_tensor(stored_drafter["draft_to_target"]).astype(np.int64)
    return ReferenceSource(
        load_target=load_target, load_drafter=load_drafter, draft_to_target=draft_to_target, is_rounded=True
    )


def _stored_name(stored: StoredWeights, name: str) -> str:
    """What a build stores a tensor under: its own name, or that of the one it was fused into."""
    prefix, _, part = name.rpartition(".")
    stem, _, kind = part.rpartition("_")
    return name if name in stored or not prefix or stem not in _FUSED else f"{prefix}.{_FUSED[stem][0]}_{kind}"


def _load_stored(stored: StoredWeights, name: str, config: TargetConfig | DrafterConfig) -> NDArray[np.generic]:
    """Read a tensor, cutting it out of a fused one where the build fused it, or stacking what it left apart."""
    stack = None if name in stored else load_experts(stored, name)
    if stack is not None:
        return stack
    prefix, _, part = name.rpartition(".")
    stem, _, kind = part.rpartition("_")
    if name in stored or not prefix or stem not in _FUSED or kind == "norm":
        return load_unpacked(stored, name)
    fused, index = _FUSED[stem]
    rows = load_unpacked(stored, f"{prefix}.{fused}_{kind}")
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    ends = [queries, queries + keys] if fused == "qkv" else [config.intermediate_size]
    part_rows: NDArray[np.generic] = np.split(rows, ends)[index]
    return part_rows
