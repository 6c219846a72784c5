"""How a head begins: its sizes from the target, its scale from the data, its layers from the target's last ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from peagle_trt.train.head import HeadShape, PeagleHead

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

    from peagle_trt.train.features import TrainingSequence
    from peagle_trt.train.llama import LlamaShape


def head_shape(
    target: LlamaShape,
    *,
    auxiliary_layers: tuple[int, ...],
    num_layers: int,
    draft_vocab_size: int,
    mask_token_id: int,
    num_depths: int,
) -> HeadShape:
    """A head with the target's own widths, so that embeddings and lm_head fit."""
    return HeadShape(
        hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        num_layers=num_layers,
        num_heads=target.num_heads,
        num_key_value_heads=target.num_key_value_heads,
        head_dim=target.head_dim,
        rms_norm_eps=target.rms_norm_eps,
        rope_theta=target.rope_theta,
        max_positions=target.max_positions,
        target_hidden_size=target.hidden_size,
        auxiliary_layers=auxiliary_layers,
        vocab_size=target.vocab_size,
        draft_vocab_size=draft_vocab_size,
        mask_token_id=mask_token_id,
        num_depths=num_depths,
    )


def auxiliary_scale(sequences: Sequence[TrainingSequence], *, num_sequences: int = 64) -> Tensor:
    """Root mean square of each auxiliary column over some sequences, without their first token.

    The first token of a sequence carries activations hundreds of times larger than the others'.
    """
    import torch

    rows = torch.cat([sequence.auxiliary_NA[1:].float() for sequence in sequences[:num_sequences]])
    return rows.square().mean(dim=0).sqrt().clamp(min=1e-4)


def count_tokens(sequences: Sequence[TrainingSequence], vocab_size: int) -> NDArray[np.int64]:
    """Occurrences of each token among the generated ones, [V]."""
    generated = [sequence.token_ids[sequence.prompt_length :].numpy() for sequence in sequences]
    return np.bincount(np.concatenate(generated), minlength=vocab_size).astype(np.int64)


def copy_last_layers(head: PeagleHead, weights: dict[str, Tensor], num_target_layers: int) -> None:
    """Start the head as the target's last layers reading the highest auxiliary state.

    `fc` starts as a copy of that state, layer 0 ignores the embedding half of its input at first; training takes it
    from there. Nothing is copied where the widths differ.

    Args:
        head: Changed in place.
        weights: The target's tensors under Hugging Face names.
        num_target_layers: n; head layer i of N starts as target layer n-N+i.
    """
    import torch

    hidden = head.shape.hidden_size
    with torch.no_grad():
        head.fc.mul_(0.1)
        head.fc[:, -hidden:] += torch.diag(head.auxiliary_scale_A[-hidden:])
        head.norm.copy_(weights["model.norm.weight"])
        for index, layer in enumerate(head.head_layers()):
            prefix = f"model.layers.{num_target_layers - head.shape.num_layers + index}."
            for name, value in layer.named_weights():
                source = weights[f"{prefix}{name}.weight"].float()
                if value.shape == source.shape:
                    value.copy_(source)
                else:
                    value[:, :hidden].mul_(0.5)
                    value[:, hidden:].copy_(source)
        head.hidden_norm.copy_(
            weights[f"model.layers.{num_target_layers - head.shape.num_layers}.input_layernorm.weight"]
        )
        head.head_layers()[0].input_norm.fill_(1.0)


def seeded_head(shape: HeadShape, scale_A: Tensor, compute_dtype: torch.dtype, seed: int) -> PeagleHead:
    """A head whose random weights depend on the seed alone."""
    import torch

    torch.manual_seed(seed)
    return PeagleHead(shape, scale_A, compute_dtype)
