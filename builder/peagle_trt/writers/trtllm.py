"""TensorRT-LLM's dialect (its PyTorch backend's `Eagle3ForCausalLM`)."""

from __future__ import annotations

import numpy as np

from peagle_trt.readers import DrafterCheckpoint, TargetCheckpoint
from peagle_trt.readers.dialects import TRTLLM, TRTLLM_ONE_LAYER
from peagle_trt.spec import DrafterConfig
from peagle_trt.writers.settings import layer_settings, older_rope, refuse_lone_biases, text_settings
from peagle_trt.writers.spelled import SpelledHead, SpelledTensor, cannot_hold
from peagle_trt.writers.tensors import float_type, output_layer, own_tensors, zero_output_biases


def spell(drafter: DrafterCheckpoint, target: TargetCheckpoint | None) -> SpelledHead:
    """A head as TensorRT-LLM's EAGLE-3 class reads it, with what a P-EAGLE worker needs on top.

    Args:
        drafter: The head.
        target: Its target; needed where the head proposes from some rows of the target's output layer.

    Raises:
        CheckpointError: The head has a part that the class has no place for.
        UsageError: The target is needed and not given.

    Source: TensorRT-LLM 1.3 `modeling_speculative.py`; Model-Optimizer's export for `eagle_config`, whose numbers of
        layers count outputs.
    """
    config = drafter.config
    _refuse_parts(config)
    document = {
        "architectures": ["LlamaForCausalLMEagle3"],
        **layer_settings(config, float_type(drafter)),
        **older_rope(config.rope),
        **text_settings(target.config if target else None),
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "fc_norm": config.has_fc_norm,
        "norm_output": config.norm_output,
        "num_depths": config.num_depths,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": _outputs(config),
            "use_aux_hidden_state": True,
            "next_layer_regular": True,
            "norm_before_fc": config.norm_before_fc,
            "return_hidden_post_norm": config.norm_output,
        },
    }
    if config.is_parallel:
        document |= dict.fromkeys(("mask_token_id", "pard_token", "ptd_token_id"), config.mask_token_id)
        document["parallel_drafting"] = True
    return SpelledHead(document=document, tensors=_tensors(drafter, target), notes=_notes(config))


def _refuse_parts(config: DrafterConfig) -> None:
    parts = {
        "`norm_before_residual`": config.norm_before_residual,
        "norms of queries and keys": config.has_qk_norm,
        "sliding windows": any(config.attention_windows),
        "the embeddings' own stream, layer 0": config.aux_layer_ids[0] == 0,
    }
    for what, is_there in parts.items():
        if is_there:
            raise cannot_hold(TRTLLM.name, what, "its drafter has no such part")
    refuse_lone_biases(config, TRTLLM.name)


def _outputs(config: DrafterConfig) -> list[int]:
    return [layer - 1 for layer in config.aux_layer_ids]


def _tensors(drafter: DrafterCheckpoint, target: TargetCheckpoint | None) -> tuple[SpelledTensor, ...]:
    config = drafter.config
    name = (TRTLLM_ONE_LAYER if config.num_layers == 1 else TRTLLM).foreign_name
    tensors = own_tensors(drafter, name, without=("d2t",) if _drops_map(drafter) else ())
    if not config.has_own_lm_head and config.draft_vocab_size < config.vocab_size:
        tensors.append(output_layer(drafter, target, name("lm_head")))
    return (*tensors, *zero_output_biases(drafter, name))


def _drops_map(drafter: DrafterCheckpoint) -> bool:
    """Whether a map of the whole vocabulary is to be left out, for which the class makes no room."""
    config = drafter.config
    if not config.has_vocabulary_map or config.draft_vocab_size < config.vocab_size:
        return False
    if np.any(drafter.weights.load("d2t")):
        raise cannot_hold(TRTLLM.name, "a whole vocabulary in another order", "it reads `d2t` of reduced ones only")
    return True


def _notes(config: DrafterConfig) -> tuple[str, ...]:
    notes = [f"capture the outputs of the target's layers {', '.join(map(str, _outputs(config)))}"]
    if config.is_parallel:
        notes.append("stock TensorRT-LLM has no P-EAGLE: it needs a worker that knows `mask_hidden`")
    if config.has_own_embeddings and config.hidden_size == config.target_hidden_size:
        notes.append("stock TensorRT-LLM would share the target's embeddings and leave this head's own unread")
    return tuple(notes)
