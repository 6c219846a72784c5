"""The P-EAGLE drafter in torch, over the flat rows of several sequences.

Shape letters: R rows of all sequences, H drafter hidden, T target hidden, A auxiliary width (3T), Q query heads,
N key-value heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
import torch.nn.functional as functional
from torch import nn

from peagle_trt.train.llama import rms_norm, rotary_tables, rotate

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    """Sizes of a drafter; every one of them ends in its config.json."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_positions: int
    target_hidden_size: int
    auxiliary_layers: tuple[int, ...]
    vocab_size: int
    draft_vocab_size: int
    mask_token_id: int
    num_depths: int

    @property
    def auxiliary_width(self) -> int:
        """Width of the concatenated auxiliary hidden states."""
        return self.target_hidden_size * len(self.auxiliary_layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadRows:
    """What the drafter reads, flat over sequences; attention stays inside each sequence.

    Attributes:
        token_ids_R: Token of each slot; the mask id on mask rows.
        auxiliary_RA: Target's hidden states, float; anything on mask rows.
        is_mask_R: Rows that carry `mask_hidden`.
        positions_R: Rotary positions.
        masks: One additive attention mask a sequence, [r, r] each; their sizes cut R into sequences.
    """

    token_ids_R: Tensor
    auxiliary_RA: Tensor
    is_mask_R: Tensor
    positions_R: Tensor
    masks: Sequence[Tensor]


class PeagleHead(nn.Module):
    """fc, a fusion layer that reads [embedding | hidden], ordinary layers, a final norm.

    The auxiliary states' columns differ in size by orders of magnitude, so `fc` is trained on columns divided by
    `auxiliary_scale_A`; `folded_state` multiplies it back, and a checkpoint holds the plain architecture.
    """

    auxiliary_scale_A: Tensor
    _cosines: Tensor
    _sines: Tensor

    def __init__(self, shape: HeadShape, auxiliary_scale_A: Tensor, compute_dtype: torch.dtype = torch.float32) -> None:
        """Random weights.

        Args:
            shape: Sizes.
            auxiliary_scale_A: Typical magnitude of each auxiliary column, [A], positive.
            compute_dtype: Type of the linear layers; norms and residuals stay float32.
        """
        super().__init__()
        self.shape, self.compute_dtype = shape, compute_dtype
        self.register_buffer("auxiliary_scale_A", auxiliary_scale_A.float())
        self.fc = _matrix(shape.hidden_size, shape.auxiliary_width)
        self.mask_hidden_A = nn.Parameter(torch.randn(shape.auxiliary_width))
        self.hidden_norm = nn.Parameter(torch.ones(shape.hidden_size))
        self.layers = nn.ModuleList(HeadLayer(shape, is_first=index == 0) for index in range(shape.num_layers))
        self.norm = nn.Parameter(torch.ones(shape.hidden_size))
        cosines, sines = rotary_tables(shape.head_dim, shape.rope_theta, shape.max_positions)
        self.register_buffer("_cosines", cosines, persistent=False)
        self.register_buffer("_sines", sines, persistent=False)

    def forward(self, rows: HeadRows, embeddings_VH: Tensor) -> Tensor:
        """Final hidden states, lm_head's input.

        Args:
            rows: Slots of one or more sequences.
            embeddings_VH: The target's embedding table.

        Returns:
            [R, H] float32, after the final norm.
        """
        scaled_RA = rows.auxiliary_RA / self.auxiliary_scale_A
        scaled_RA = torch.where(rows.is_mask_R[:, None], self.mask_hidden_A, scaled_RA)
        hidden_RH = linear(scaled_RA, self.fc, self.compute_dtype)
        rotation: tuple[Tensor, Tensor] = (self._cosines[rows.positions_R][:, None], self._sines[rows.positions_R][:, None])
        first: Tensor | None = embeddings_VH[rows.token_ids_R]
        for layer in self.head_layers():
            hidden_RH = layer(hidden_RH, first, self.hidden_norm, rotation, rows.masks, self.compute_dtype)
            first = None
        return rms_norm(hidden_RH, self.norm, self.shape.rms_norm_eps)

    def head_layers(self) -> list[HeadLayer]:
        """The decoder layers, the fusion layer first."""
        return cast("list[HeadLayer]", list(self.layers))

    def folded_state(self) -> dict[str, Tensor]:
        """The weights under their names in a checkpoint, without the training-time scale."""
        state = {
            "fc.weight": self.fc / self.auxiliary_scale_A,
            "mask_hidden": (self.mask_hidden_A * self.auxiliary_scale_A).view(1, 1, -1),
            "layers.0.hidden_norm.weight": self.hidden_norm,
            "norm.weight": self.norm,
        }
        for index, layer in enumerate(self.head_layers()):
            state.update({f"layers.{index}.{name}.weight": value for name, value in layer.named_weights()})
        return {name: value.detach().clone() for name, value in state.items()}

    def load_folded_state(self, state: dict[str, Tensor]) -> None:
        """The inverse of `folded_state`; every tensor must be there."""
        with torch.no_grad():
            self.fc.copy_(state["fc.weight"].float() * self.auxiliary_scale_A)
            self.mask_hidden_A.copy_(state["mask_hidden"].float().view(-1) / self.auxiliary_scale_A)
            self.hidden_norm.copy_(state["layers.0.hidden_norm.weight"])
            self.norm.copy_(state["norm.weight"])
            for index, layer in enumerate(self.head_layers()):
                for name, value in layer.named_weights():
                    value.copy_(state[f"layers.{index}.{name}.weight"])


class HeadLayer(nn.Module):
    """One decoder layer; the first reads [norm(embedding) | norm(hidden)] and adds to the un-normed hidden state."""

    def __init__(self, shape: HeadShape, *, is_first: bool) -> None:
        super().__init__()
        self._shape = shape
        width = 2 * shape.hidden_size if is_first else shape.hidden_size
        self.input_norm = nn.Parameter(torch.ones(shape.hidden_size))
        self.post_norm = nn.Parameter(torch.ones(shape.hidden_size))
        self.query = _matrix(shape.num_heads * shape.head_dim, width)
        self.key = _matrix(shape.num_key_value_heads * shape.head_dim, width)
        self.value = _matrix(shape.num_key_value_heads * shape.head_dim, width)
        self.output = _matrix(shape.hidden_size, shape.num_heads * shape.head_dim)
        self.gate = _matrix(shape.intermediate_size, shape.hidden_size)
        self.up = _matrix(shape.intermediate_size, shape.hidden_size)
        self.down = _matrix(shape.hidden_size, shape.intermediate_size)

    def named_weights(self) -> tuple[tuple[str, nn.Parameter], ...]:
        """Parameters under a checkpoint's names, without the layer's prefix."""
        return (
            ("input_layernorm", self.input_norm),
            ("post_attention_layernorm", self.post_norm),
            ("self_attn.q_proj", self.query),
            ("self_attn.k_proj", self.key),
            ("self_attn.v_proj", self.value),
            ("self_attn.o_proj", self.output),
            ("mlp.gate_proj", self.gate),
            ("mlp.up_proj", self.up),
            ("mlp.down_proj", self.down),
        )

    def forward(
        self,
        hidden_RH: Tensor,
        embedded_RH: Tensor | None,
        hidden_norm: Tensor,
        rotation: tuple[Tensor, Tensor],
        masks: Sequence[Tensor],
        compute_dtype: torch.dtype,
    ) -> Tensor:
        """One layer over all rows; `embedded_RH` is given to the first layer only."""
        eps = self._shape.rms_norm_eps
        if embedded_RH is None:
            read = rms_norm(hidden_RH, self.input_norm, eps)
        else:
            read = torch.cat(
                [rms_norm(embedded_RH, self.input_norm, eps), rms_norm(hidden_RH, hidden_norm, eps)], dim=-1
            )
        hidden_RH = hidden_RH + self._attend(read, rotation, masks, compute_dtype)
        normed = rms_norm(hidden_RH, self.post_norm, eps).to(compute_dtype)
        gated = functional.silu(functional.linear(normed, self.gate.to(compute_dtype)))
        opened = gated * functional.linear(normed, self.up.to(compute_dtype))
        return hidden_RH + linear(opened, self.down, compute_dtype)

    def _attend(
        self, read: Tensor, rotation: tuple[Tensor, Tensor], masks: Sequence[Tensor], compute_dtype: torch.dtype
    ) -> Tensor:
        head_dim = self._shape.head_dim
        read = read.to(compute_dtype)
        group = self._shape.num_heads // self._shape.num_key_value_heads
        queries = rotate(linear(read, self.query, compute_dtype).view(len(read), -1, head_dim), *rotation)
        keys = rotate(linear(read, self.key, compute_dtype).view(len(read), -1, head_dim), *rotation)
        values = linear(read, self.value, compute_dtype).view(len(read), -1, head_dim)
        attended, start = [], 0
        for mask in masks:
            rows = slice(start, start + mask.shape[0])
            # [rows, heads, D] to [1, heads, rows, D]; the sequences have different lengths, so one call each.
            query = queries[rows].to(compute_dtype).transpose(0, 1)[None]
            key = keys[rows].to(compute_dtype).transpose(0, 1).repeat_interleave(group, dim=0)[None]
            value = values[rows].to(compute_dtype).transpose(0, 1).repeat_interleave(group, dim=0)[None]
            result = functional.scaled_dot_product_attention(
                query, key, value, attn_mask=mask.to(compute_dtype)[None, None]
            )
            attended.append(result[0].transpose(0, 1).flatten(1))
            start = rows.stop
        return linear(torch.cat(attended), self.output, compute_dtype)


def linear(rows: Tensor, weight: Tensor, compute_dtype: torch.dtype) -> Tensor:
    """A linear layer in `compute_dtype` with a float32 result."""
    return functional.linear(rows.to(compute_dtype), weight.to(compute_dtype)).float()


def _matrix(rows: int, columns: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, columns) * columns**-0.5 * 0.5)
