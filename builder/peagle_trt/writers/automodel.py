"""The dialect of NeMo Automodel."""

from __future__ import annotations

from peagle_trt.errors import UsageError
from peagle_trt.readers import DrafterCheckpoint, TargetCheckpoint
from peagle_trt.readers.dialects import AUTOMODEL
from peagle_trt.spec import DrafterConfig
from peagle_trt.spec.target import default_aux_layer_ids
from peagle_trt.writers.settings import layer_settings, older_rope, refuse_lone_biases, text_settings
from peagle_trt.writers.spelled import SpelledHead, SpelledTensor, cannot_hold
from peagle_trt.writers.tensors import (
    embedding_table,
    float_type,
    inverse_map,
    output_layer,
    own_tensors,
    zero_output_biases,
)


def spell(drafter: DrafterCheckpoint, target: TargetCheckpoint | None) -> SpelledHead:
    """A head as Automodel's trainer saves it.

    Args:
        drafter: The head.
        target: Its target; always needed, since the dialect names no auxiliary layers.

    Raises:
        CheckpointError: The head has a part that the dialect has no word for.
        UsageError: The target is not given.

    Source: NeMo Automodel `draft_llama.py`, `peagle_draft.py` (2026-08).
    """
    config = drafter.config
    _refuse_parts(config)
    _refuse_other_layers(config, target)
    document = {
        "architectures": ["LlamaEagle3DraftModel"],
        **layer_settings(config, float_type(drafter)),
        **older_rope(config.rope),
        **text_settings(target.config if target else None),
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "fc_norm": config.has_fc_norm,
        "norm_output": config.norm_output,
    }
    if config.is_parallel:
        document |= {"parallel_drafting": True, "mask_token_id": config.mask_token_id}
    if config.num_depths is not None:
        document["num_depths"] = config.num_depths
    return SpelledHead(document=document, tensors=_tensors(drafter, target))


def _refuse_parts(config: DrafterConfig) -> None:
    parts = {
        "`norm_before_residual`": config.norm_before_residual,
        "`norm_before_fc`": config.norm_before_fc,
        "norms of queries and keys": config.has_qk_norm,
        "sliding windows": any(config.attention_windows),
    }
    for what, is_there in parts.items():
        if is_there:
            raise cannot_hold(AUTOMODEL.name, what, "its layers have none")
    refuse_lone_biases(config, AUTOMODEL.name)


def _refuse_other_layers(config: DrafterConfig, target: TargetCheckpoint | None) -> None:
    if target is None:
        raise UsageError(
            "the automodel dialect names no auxiliary layers, so they must be the usual ones of the target",
            hint="give the target with --target",
        )
    usual = default_aux_layer_ids(target.config.num_layers)
    if config.aux_layer_ids != usual:
        raise cannot_hold(
            AUTOMODEL.name,
            f"the auxiliary layers {list(config.aux_layer_ids)}",
            f"it has no key for them, and its readers take the usual {list(usual)}",
        )


def _tensors(drafter: DrafterCheckpoint, target: TargetCheckpoint | None) -> tuple[SpelledTensor, ...]:
    config, name = drafter.config, AUTOMODEL.foreign_name
    tensors = own_tensors(drafter, name) + inverse_map(drafter)
    if not config.has_own_embeddings:
        tensors.append(embedding_table(target, name("embed_tokens")))
    if not config.has_own_lm_head:
        tensors.append(output_layer(drafter, target, name("lm_head")))
    return (*tensors, *zero_output_biases(drafter, name))
