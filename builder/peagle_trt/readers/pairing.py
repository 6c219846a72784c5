"""Does this drafter belong to this target? Asked before the first long step."""

from __future__ import annotations

from peagle_trt.readers.checkpoint import DrafterCheckpoint, TargetCheckpoint
from peagle_trt.readers.findings import Finding, judged, listed
from peagle_trt.readers.vocabulary_map import judge_vocabulary_map
from peagle_trt.spec import DrafterConfig, TargetConfig

_ANOTHER = "the drafter was made for another target"


def check_pair(target: TargetCheckpoint, drafter: DrafterCheckpoint) -> None:
    """Refuse a drafter that was made for another target.

    Raises:
        CheckpointError: They disagree; the message says in what.
    """
    for finding in judge_pair(target.config, drafter):
        if finding.level == "refused":
            raise finding.error()


def judge_pair(target: TargetConfig, drafter: DrafterCheckpoint) -> list[Finding]:
    """Whether sizes, layers and tokens of a head are its target's."""
    config = drafter.config
    return [
        judged(
            config.vocab_size == target.vocab_size,
            "vocabulary",
            found=config.vocab_size,
            expected=f"{target.vocab_size}, the target's",
            hint=_ANOTHER,
        ),
        judged(
            config.target_hidden_size == target.hidden_size,
            "width of a target's state",
            found=config.target_hidden_size,
            expected=f"{target.hidden_size}, the target's hidden size",
            hint=_ANOTHER,
        ),
        _judge_aux_layers(target, config),
        *_judge_mask_range(target, config),
        *_judge_sharing(target, config),
        *judge_vocabulary_map(drafter),
    ]


def _judge_aux_layers(target: TargetConfig, drafter: DrafterConfig) -> Finding:
    layers = drafter.aux_layer_ids
    is_ordered = sorted(set(layers)) == list(layers)
    is_inside = layers[0] >= 0 and layers[-1] <= target.num_layers
    return judged(
        is_ordered and is_inside,
        "auxiliary layers",
        found=f"streams entering {listed(layers)}",
        expected=f"distinct and ascending, from 0 to {target.num_layers}, the target's layers",
        hint=_ANOTHER if is_ordered else "mend the list; its order is that of the columns of `fc`",
    )


def _judge_mask_range(target: TargetConfig, drafter: DrafterConfig) -> list[Finding]:
    if not drafter.is_parallel:
        return []
    return [
        judged(
            0 <= drafter.mask_token_id < target.vocab_size,
            "mask token",
            found=drafter.mask_token_id,
            expected=f"below {target.vocab_size}, the target's vocabulary",
            hint=_ANOTHER,
        )
    ]


def _judge_sharing(target: TargetConfig, drafter: DrafterConfig) -> list[Finding]:
    has_own = {"embed_tokens": drafter.has_own_embeddings, "lm_head": drafter.has_own_lm_head}
    return [
        judged(
            is_own or drafter.hidden_size == target.hidden_size,
            f"`{tensor}`",
            found="its own" if is_own else f"none of its own, at a width of {drafter.hidden_size}",
            expected=f"its own, or the target's width of {target.hidden_size} to share the target's",
            hint=f"use a head that carries `{tensor}`",
        )
        for tensor, is_own in has_own.items()
    ]
