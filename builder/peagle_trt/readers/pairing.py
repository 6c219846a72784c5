"""Does this drafter belong to this target? Asked before the first long step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.checkpoint import DrafterCheckpoint, TargetCheckpoint
from peagle_trt.spec import DrafterConfig, TargetConfig


def check_pair(target: TargetCheckpoint, drafter: DrafterCheckpoint) -> None:
    """Refuse a drafter that was made for another target.

    Raises:
        CheckpointError: They disagree; the message says in what.
    """
    _check_sizes(target.config, drafter.config)
    _check_aux_layers(target.config, drafter.config)
    _check_mask_token(target.config, drafter.config)
    _check_sharing(target.config, drafter.config)
    _check_vocabulary_map(drafter)


def draft_to_target_ids(drafter: DrafterCheckpoint) -> NDArray[np.int64]:
    """Id in the target's vocabulary of every draft id, [Vd] int64.

    Source: `d2t` holds offsets: target id = draft id + d2t[draft id] (EAGLE-3's published heads).
    """
    draft_ids = np.arange(drafter.config.draft_vocab_size, dtype=np.int64)
    if not drafter.config.has_vocabulary_map:
        return draft_ids
    return draft_ids + drafter.weights.load("d2t").astype(np.int64)


def _check_sizes(target: TargetConfig, drafter: DrafterConfig) -> None:
    if drafter.vocab_size != target.vocab_size:
        raise _mismatch("vocab_size", drafter.vocab_size, target.vocab_size)
    if drafter.target_hidden_size != target.hidden_size:
        raise _mismatch("target_hidden_size", drafter.target_hidden_size, target.hidden_size)


def _mismatch(key: str, found: int, expected: int) -> CheckpointError:
    return CheckpointError(
        f"the drafter's `{key}` is {found}, the target's is {expected}", hint="the drafter was made for another target"
    )


def _check_aux_layers(target: TargetConfig, drafter: DrafterConfig) -> None:
    layers = drafter.aux_layer_ids
    if sorted(set(layers)) != list(layers):
        raise CheckpointError(f"the drafter's auxiliary layers {list(layers)} are not distinct and ascending")
    if layers[0] < 0 or layers[-1] > target.num_layers:
        raise CheckpointError(
            f"the drafter reads layers {list(layers)}, but the target has {target.num_layers}",
            hint="the drafter was made for another target",
        )


def _check_mask_token(target: TargetConfig, drafter: DrafterConfig) -> None:
    if drafter.mask_token_id >= target.vocab_size:
        raise CheckpointError(
            f"the drafter's mask token {drafter.mask_token_id} is outside the vocabulary of {target.vocab_size}",
            hint="the drafter was made for another target",
        )


def _check_sharing(target: TargetConfig, drafter: DrafterConfig) -> None:
    if drafter.hidden_size == target.hidden_size:
        return
    for is_own, tensor in ((drafter.has_own_embeddings, "embed_tokens"), (drafter.has_own_lm_head, "lm_head")):
        if not is_own:
            raise CheckpointError(
                f"the drafter has no `{tensor}` of its own and cannot share the target's: "
                f"hidden size {drafter.hidden_size} against {target.hidden_size}",
                hint=f"use a head that carries `{tensor}`",
            )


def _check_vocabulary_map(drafter: DrafterCheckpoint) -> None:
    target_ids = draft_to_target_ids(drafter)
    if target_ids.min() < 0 or target_ids.max() >= drafter.config.vocab_size:
        raise CheckpointError(
            f"the drafter's `d2t` leads to token {int(target_ids.max())}, "
            f"outside the vocabulary of {drafter.config.vocab_size}",
            hint="`d2t` holds offsets, not ids; the head may have been saved by another tool",
        )
    if len(np.unique(target_ids)) != len(target_ids):
        raise CheckpointError(
            "the drafter's `d2t` maps two draft ids to one token",
            hint="`d2t` holds offsets, not ids; the head may have been saved by another tool",
        )
