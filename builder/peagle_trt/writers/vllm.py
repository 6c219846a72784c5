"""vLLM's dialect, which is this project's own."""

from __future__ import annotations

import json

from peagle_trt.readers import DrafterCheckpoint, TargetCheckpoint
from peagle_trt.readers.dialects import VLLM
from peagle_trt.spec import DrafterConfig, TargetConfig
from peagle_trt.writers.settings import (
    layer_settings,
    mixed_window_notes,
    older_rope,
    refuse_lone_biases,
    text_settings,
    window_settings,
)
from peagle_trt.writers.spelled import SpelledHead, SpelledTensor, cannot_hold
from peagle_trt.writers.tensors import float_type, output_layer, own_tensors, zero_output_biases

_ARCHITECTURES = {False: "LlamaForCausalLMEagle3", True: "Eagle3Qwen3ForCausalLM"}
_USUAL_DRAFT_TOKENS = 5


def spell(drafter: DrafterCheckpoint, target: TargetCheckpoint | None) -> SpelledHead:
    """A head as vLLM's `eagle3` method loads it.

    Args:
        drafter: The head.
        target: Its target; needed where the head proposes from some rows of the target's output layer.

    Raises:
        CheckpointError: The head has a part that vLLM's classes have no place for.
        UsageError: The target is needed and not given.

    Source: vLLM 0.32 `llama_eagle3.py`, `qwen3_eagle3.py`, `config/speculative.py`.
    """
    config = drafter.config
    refuse_lone_biases(config, VLLM.name)
    if config.has_qk_norm and config.has_output_bias:
        raise cannot_hold(VLLM.name, "a bias of the attention's output beside head norms", "its Qwen3 layers have none")
    document = config_document(config, float_type(drafter), target.config if target else None)
    return SpelledHead(document=document, tensors=_tensors(drafter, target), notes=_notes(config))


def config_document(config: DrafterConfig, stored_type: str, target: TargetConfig | None) -> dict[str, object]:
    """The config.json of a head.

    Args:
        config: The head.
        stored_type: Type of its weights, as safetensors spells it.
        target: Its target where it is known, for the tokens that start and end texts.

    Raises:
        CheckpointError: Layers have windows of different widths.
    """
    return {
        "architectures": [_ARCHITECTURES[config.has_qk_norm]],
        **layer_settings(config, stored_type),
        **older_rope(config.rope),
        **window_settings(config, VLLM.name),
        **text_settings(target),
        **_head_settings(config),
    }


def _head_settings(config: DrafterConfig) -> dict[str, object]:
    eagle = {
        "eagle_aux_hidden_state_layer_ids": list(config.aux_layer_ids),
        "use_aux_hidden_state": True,
        "norm_before_fc": config.norm_before_fc,
    }
    settings: dict[str, object] = {
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "num_aux_hidden_states": len(config.aux_layer_ids),
        "norm_before_residual": config.norm_before_residual,
        "fc_norm": config.has_fc_norm,
        "norm_output": config.norm_output,
        "eagle_config": eagle,
        "num_depths": config.num_depths,
    }
    if config.is_parallel:
        # Versions differ in which of the three names they read.
        settings |= dict.fromkeys(("mask_token_id", "pard_token", "ptd_token_id"), config.mask_token_id)
        settings["parallel_drafting"] = True
    return settings


def _tensors(drafter: DrafterCheckpoint, target: TargetCheckpoint | None) -> tuple[SpelledTensor, ...]:
    config, name = drafter.config, VLLM.foreign_name
    tensors = own_tensors(drafter, name)
    if not config.has_own_lm_head and config.has_vocabulary_map:
        # vLLM shares the target's whole layer or none of it.
        tensors.append(output_layer(drafter, target, name("lm_head")))
    if not config.has_qk_norm:
        tensors += zero_output_biases(drafter, name)
    return tuple(tensors)


def _notes(config: DrafterConfig) -> tuple[str, ...]:
    settings: dict[str, object] = {
        "method": "eagle3",
        "model": "DIR",
        "num_speculative_tokens": config.num_depths or _USUAL_DRAFT_TOKENS,
    }
    if config.is_parallel:
        settings["parallel_drafting"] = True
    serve = f"serve it with --speculative-config '{json.dumps(settings)}'; vLLM would guess the method by the path"
    return (serve, *mixed_window_notes(config))
