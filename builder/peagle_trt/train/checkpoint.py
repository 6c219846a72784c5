"""A trained head on disk in the dialect that vLLM reads: config.json and model.safetensors in bfloat16."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from peagle_trt import readers
from peagle_trt.errors import CheckpointError
from peagle_trt.files import replacing, write_text

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

    Raises:
        MachineError: The disk is full, or the folder cannot be written.
    """
    import torch
    from safetensors.torch import save

    from peagle_trt.train.vocabulary import draft_offsets
    from peagle_trt.writers.vllm import config_document

    tensors = {_dialect_name(name): value.to("cpu", torch.bfloat16).contiguous() for name, value in state.items()}
    if head.config.is_parallel:
        tensors["mask_hidden"] = tensors["mask_hidden"].view(1, 1, -1)
    if len(draft_to_target) != target.vocab_size:
        tensors["d2t"] = torch.from_numpy(draft_offsets(draft_to_target))
    write_text(folder / CONFIG_NAME, json.dumps(config_document(head.config, "BF16", target), indent=2) + "\n")
    with replacing(folder / WEIGHTS_NAME) as file:
        file.write(save(tensors, metadata={"format": "pt"}))


def read_head(
    folder: Path, compute_dtype: torch.dtype, *, num_target_layers: int | None = None
) -> tuple[PeagleHead, NDArray[np.int64]]:
    """Load a head of any known dialect, P-EAGLE's or EAGLE-3's.

    Args:
        folder: Of the checkpoint.
        compute_dtype: Type of the linear layers.
        num_target_layers: Layers of the target, for a head that does not name the ones it reads.

    Returns:
        The head, and the target id of each draft id.

    Raises:
        CheckpointError: The checkpoint is damaged, or the head has parts that training here does not know.
    """
    import numpy as np
    import torch

    from peagle_trt.train.head import PeagleHead, auxiliary_width

    checkpoint = readers.read_head(folder, num_target_layers=num_target_layers)
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
