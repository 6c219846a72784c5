"""The dialect of the speculators library."""

from __future__ import annotations

from peagle_trt.readers import DrafterCheckpoint, TargetCheckpoint
from peagle_trt.readers.dialects import SPECULATORS
from peagle_trt.spec import DrafterConfig
from peagle_trt.writers.settings import (
    layer_settings,
    mixed_window_notes,
    newer_rope,
    refuse_lone_biases,
    window_settings,
)
from peagle_trt.writers.spelled import SpelledHead, SpelledTensor
from peagle_trt.writers.tensors import float_type, inverse_map, output_layer, own_tensors, zero_output_biases

_USUAL_DRAFT_TOKENS = 5


def spell(drafter: DrafterCheckpoint, target: TargetCheckpoint | None) -> SpelledHead:
    """A head as speculators saves it.

    Args:
        drafter: The head.
        target: Its target; needed where the head has no output layer of its own.

    Raises:
        CheckpointError: The head has a part that the library has no place for.
        UsageError: The target is needed and not given.

    Source: speculators `PEagleSpeculatorConfig`, `Eagle3SpeculatorConfig` (2026-08).
    """
    config = drafter.config
    refuse_lone_biases(config, SPECULATORS.name)
    method = "peagle" if config.is_parallel else "eagle3"
    layers = (
        layer_settings(config, float_type(drafter))
        | newer_rope(config.rope)
        | window_settings(config, SPECULATORS.name)
    )
    document = {
        "architectures": ["PEagleDraftModel" if config.is_parallel else "Eagle3DraftModel"],
        "speculators_model_type": method,
        "dtype": layers["dtype"],
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.norm_before_fc,
        "fc_norm": config.has_fc_norm,
        "norm_output": config.norm_output,
        "eagle_aux_hidden_state_layer_ids": list(config.aux_layer_ids),
        "tie_word_embeddings": False,
        "transformer_layer_config": layers,
        "speculators_config": _proposal(config, target, method),
    }
    if config.is_parallel:
        document |= {"mask_token_id": config.mask_token_id, "embed_requires_grad": True}
    return SpelledHead(document=document, tensors=_tensors(drafter, target), notes=_notes(config))


def _proposal(config: DrafterConfig, target: TargetCheckpoint | None, method: str) -> dict[str, object]:
    greedy = {
        "proposal_type": "greedy",
        "speculative_tokens": config.num_depths or _USUAL_DRAFT_TOKENS,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    verifier = {
        "name_or_path": target.path.name if target else None,
        "architectures": [target.config.architecture] if target else [],
    }
    return {
        "algorithm": method,
        "default_proposal_method": "greedy",
        "proposal_methods": [greedy],
        "verifier": verifier,
    }


def _tensors(drafter: DrafterCheckpoint, target: TargetCheckpoint | None) -> tuple[SpelledTensor, ...]:
    name = SPECULATORS.foreign_name
    tensors = own_tensors(drafter, name) + inverse_map(drafter)
    if not drafter.config.has_own_lm_head:
        tensors.append(output_layer(drafter, target, name("lm_head")))
    return (*tensors, *zero_output_biases(drafter, name))


def _notes(config: DrafterConfig) -> tuple[str, ...]:
    notes = ["`verifier.name_or_path` names the target's folder only; set it to where others find the target"]
    if config.num_depths is None:
        notes.append(f"the head does not say its depths; `speculative_tokens` is {_USUAL_DRAFT_TOKENS}")
    if config.is_parallel and config.has_fc_norm:
        notes.append("vLLM 0.32 cannot load `fc_norm` of a P-EAGLE head in this dialect; for vLLM convert --to vllm")
    return (*notes, *mixed_window_notes(config))
