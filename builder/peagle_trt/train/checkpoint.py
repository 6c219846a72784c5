"""A trained head on disk in the dialect that vLLM reads: config.json and model.safetensors in bfloat16."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peagle_trt.errors import CheckpointError
from peagle_trt.readers import read_drafter

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

    from peagle_trt.spec import DrafterConfig, TargetConfig
    from peagle_trt.train.head import PeagleHead

CONFIG_NAME, WEIGHTS_NAME = "config.json", "model.safetensors"
_SPELLINGS = {
    "input_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    **{f"{name}_proj": f"self_attn.{name}_proj" for name in "qkvo"},
    **{f"{name}_proj": f"mlp.{name}_proj" for name in ("gate", "up", "down")},
}


def write_head(
    folder: Path, head: PeagleHead, draft_to_target: NDArray[np.int64], target: TargetConfig, state: dict[str, Tensor]
) -> None:
    """Write a checkpoint; embeddings and lm_head are left out, a reader takes them from the target.

    Args:
        folder: Made when missing; its files are replaced one by one.
        head: Gives the config.
        draft_to_target: Target id of each draft id, ascending.
        target: Sizes and special tokens of the target.
        state: Folded weights, `head.folded_state()` or an average of several.
    """
    import torch
    from safetensors.torch import save_file

    from peagle_trt.train.vocabulary import draft_offsets

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {_dialect_name(name): value.to(torch.bfloat16).contiguous() for name, value in state.items()}
    tensors["mask_hidden"] = tensors["mask_hidden"].view(1, 1, -1)
    if len(draft_to_target) != target.vocab_size:
        tensors["d2t"] = torch.from_numpy(draft_offsets(draft_to_target))
    staging = folder / f"{WEIGHTS_NAME}.part"
    save_file(tensors, staging, metadata={"format": "pt"})
    (folder / CONFIG_NAME).write_text(json.dumps(config_document(head.config, target), indent=2) + "\n")
    staging.rename(folder / WEIGHTS_NAME)


def config_document(config: DrafterConfig, target: TargetConfig) -> dict[str, Any]:
    """The config.json of a head.

    Source: keys that vLLM's EAGLE-3 and parallel drafting read; all three spellings of the mask token are written,
    because its versions differ in which they know.
    """
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope.theta,
        "rope_scaling": None,
        "max_position_embeddings": config.max_positions,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "bos_token_id": target.bos_token_id,
        "eos_token_id": target.eos_token_ids[0],
        "mask_token_id": config.mask_token_id,
        "pard_token": config.mask_token_id,
        "ptd_token_id": config.mask_token_id,
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": False,
        "target_hidden_size": config.target_hidden_size,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": list(config.aux_layer_ids),
            "use_aux_hidden_state": True,
        },
        "parallel_drafting": True,
        "num_depths": config.num_depths,
    }


def read_head(folder: Path, compute_dtype: torch.dtype) -> tuple[PeagleHead, NDArray[np.int64]]:
    """Load a head of any known dialect.

    Returns:
        The head, and the target id of each draft id.

    Raises:
        CheckpointError: The checkpoint is damaged, or the head has parts that training here does not know.
    """
    import numpy as np
    import torch

    from peagle_trt.train.head import PeagleHead, auxiliary_width

    checkpoint = read_drafter(folder)
    config = checkpoint.config
    _refuse_extras(folder, config)
    head = PeagleHead(config, torch.ones(auxiliary_width(config)), compute_dtype)
    head.load_folded_state({name: torch.from_numpy(checkpoint.weights.load(name)) for name in head.folded_state()})
    identity = np.arange(config.draft_vocab_size)
    if not config.has_vocabulary_map:
        return head, identity
    return head, identity + checkpoint.weights.load("d2t").astype(np.int64)


def _refuse_extras(folder: Path, config: DrafterConfig) -> None:
    extras = {
        "normalised residual": config.norm_before_residual,
        "norm before fc": config.norm_before_fc or config.has_fc_norm,
        "biases": config.has_attention_bias or config.has_output_bias or config.has_mlp_bias,
        "norms of queries and keys": config.has_qk_norm,
        "sliding windows": any(config.attention_windows),
        "scaled rotary embedding": config.rope.scaling != "none",
        "own embeddings or lm_head": config.has_own_embeddings or config.has_own_lm_head,
    }
    for name, is_present in extras.items():
        if is_present:
            raise CheckpointError(f"`{folder}`: a head with {name} cannot be trained or walked here")


def _dialect_name(name: str) -> str:
    """A checkpoint's name for one of our tensors."""
    if name in ("mask_hidden", "d2t"):
        return name
    parts = name.split(".")
    return ".".join([*parts[:-1], _SPELLINGS.get(parts[-1], parts[-1]), "weight"])
