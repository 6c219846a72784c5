"""A trained head on disk in the dialect that vLLM reads: config.json and model.safetensors in bfloat16."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peagle_trt.errors import CheckpointError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

    from peagle_trt.train.head import HeadShape, PeagleHead
    from peagle_trt.train.llama import LlamaShape

CONFIG_NAME, WEIGHTS_NAME = "config.json", "model.safetensors"


def write_head(
    folder: Path, head: PeagleHead, draft_to_target: NDArray[np.int64], target: LlamaShape, state: dict[str, Tensor]
) -> None:
    """Write a checkpoint; embeddings and lm_head are left out, a reader takes them from the target.

    Args:
        folder: Made when missing; its files are replaced one by one.
        head: Gives the shape.
        draft_to_target: Target id of each draft id, ascending.
        target: Sizes and special tokens of the target.
        state: Folded weights, `head.folded_state()` or an average of several.
    """
    import torch
    from safetensors.torch import save_file

    from peagle_trt.train.vocabulary import draft_offsets

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.to(torch.bfloat16).contiguous() for name, value in state.items()}
    if len(draft_to_target) != target.vocab_size:
        tensors["d2t"] = torch.from_numpy(draft_offsets(draft_to_target))
    staging = folder / f"{WEIGHTS_NAME}.part"
    save_file(tensors, staging, metadata={"format": "pt"})
    (folder / CONFIG_NAME).write_text(json.dumps(head_config(head.shape, target), indent=2) + "\n")
    staging.rename(folder / WEIGHTS_NAME)


def head_config(shape: HeadShape, target: LlamaShape) -> dict[str, Any]:
    """The config.json of a head.

    Source: keys that vLLM's EAGLE-3 and parallel drafting read; all three spellings of the mask token are written,
    because its versions differ in which they know.
    """
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "vocab_size": shape.vocab_size,
        "draft_vocab_size": shape.draft_vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "max_position_embeddings": shape.max_positions,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "bos_token_id": target.bos_token_id,
        "eos_token_id": target.eos_token_id,
        "mask_token_id": shape.mask_token_id,
        "pard_token": shape.mask_token_id,
        "ptd_token_id": shape.mask_token_id,
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": False,
        "target_hidden_size": shape.target_hidden_size,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": list(shape.auxiliary_layers),
            "use_aux_hidden_state": True,
        },
        "parallel_drafting": True,
        "num_depths": shape.num_depths,
    }


def read_head(folder: Path, compute_dtype: torch.dtype) -> tuple[PeagleHead, NDArray[np.int64]]:
    """Load a checkpoint that `write_head` wrote.

    Returns:
        The head, and the target id of each draft id.

    Raises:
        CheckpointError: A tensor is missing or has another shape.
    """
    import numpy as np
    import torch
    from safetensors.torch import load_file

    from peagle_trt.train.head import PeagleHead

    shape = _read_shape(json.loads((folder / CONFIG_NAME).read_text()))
    state = load_file(folder / WEIGHTS_NAME)
    head = PeagleHead(shape, torch.ones(shape.auxiliary_width), compute_dtype)
    expected = {name: tuple(value.shape) for name, value in head.folded_state().items()}
    for name, sizes in expected.items():
        if name not in state:
            raise CheckpointError(f"tensor `{name}` is missing in `{folder / WEIGHTS_NAME}`")
        if tuple(state[name].shape) != sizes:
            raise CheckpointError(f"tensor `{name}` has shape `{tuple(state[name].shape)}`, expected `{sizes}`")
    head.load_folded_state(state)
    offsets = state["d2t"].numpy() if "d2t" in state else np.zeros(shape.draft_vocab_size, dtype=np.int64)
    return head, offsets + np.arange(shape.draft_vocab_size)


def _read_shape(raw: dict[str, Any]) -> HeadShape:
    from peagle_trt.train.head import HeadShape

    return HeadShape(
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        num_layers=raw["num_hidden_layers"],
        num_heads=raw["num_attention_heads"],
        num_key_value_heads=raw["num_key_value_heads"],
        head_dim=raw["head_dim"],
        rms_norm_eps=raw["rms_norm_eps"],
        rope_theta=raw["rope_theta"],
        max_positions=raw["max_position_embeddings"],
        target_hidden_size=raw["target_hidden_size"],
        auxiliary_layers=tuple(raw["eagle_config"]["eagle_aux_hidden_state_layer_ids"]),
        vocab_size=raw["vocab_size"],
        draft_vocab_size=raw["draft_vocab_size"],
        mask_token_id=raw["mask_token_id"],
        num_depths=raw["num_depths"],
    )
