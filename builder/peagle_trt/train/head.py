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

    from peagle_trt.spec import DrafterConfig


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

    def __init__(
        self, config: DrafterConfig, auxiliary_scale_A: Tensor, compute_dtype: torch.dtype = torch.float32
    ) -> None:
        """Random weights.

        Args:
            config: Sizes; optional norms, biases and scaled rotary embeddings are not known here.
            auxiliary_scale_A: Typical magnitude of each auxiliary column, [A], positive.
            compute_dtype: Type of the linear layers; norms and residuals stay float32.
        """
        super().__init__()
        self.config, self.compute_dtype = config, compute_dtype
        self.register_buffer("auxiliary_scale_A", auxiliary_scale_A.float())
        self.fc = _matrix(config.hidden_size, auxiliary_width(config))
        self.mask_hidden_A = nn.Parameter(torch.randn(auxiliary_width(config)))
        self.hidden_norm = nn.Parameter(torch.ones(config.hidden_size))
        self.layers = nn.ModuleList(HeadLayer(config, is_first=index == 0) for index in range(config.num_layers))
        self.norm = nn.Parameter(torch.ones(config.hidden_size))
        cosines, sines = rotary_tables(config.head_dim, config.rope.theta, config.max_positions)
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
        rotation: tuple[Tensor, Tensor] = (
            self._cosines[rows.positions_R][:, None],
            self._sines[rows.positions_R][:, None],
        )
        first: Tensor | None = embeddings_VH[rows.token_ids_R]
        for layer in self.head_layers():
            hidden_RH = layer(hidden_RH, first, self.hidden_norm, rotation, rows.masks, self.compute_dtype)
            first = None
        return rms_norm(hidden_RH, self.norm, self.config.rms_norm_eps)

    def head_layers(self) -> list[HeadLayer]:
        """The decoder layers, the fusion layer first."""
        return cast("list[HeadLayer]", list(self.layers))

    def folded_state(self) -> dict[str, Tensor]:
        """The weights by our names (see `spec.names`), without the training-time scale."""
        state = {
            "fc": self.fc / self.auxiliary_scale_A,
            "mask_hidden": self.mask_hidden_A * self.auxiliary_scale_A,
            "layers.0.hidden_norm": self.hidden_norm,
            "norm": self.norm,
        }
        for index, layer in enumerate(self.head_layers()):
            state.update({f"layers.{index}.{name}": value for name, value in layer.named_parameters()})
        return {name: value.detach().clone() for name, value in state.items()}

    def load_folded_state(self, state: dict[str, Tensor]) -> None:
        """The inverse of `folded_state`; every tensor must be there."""
        with torch.no_grad():
            self.fc.copy_(state["fc"].float() * self.auxiliary_scale_A)
            self.mask_hidden_A.copy_(state["mask_hidden"].float() / self.auxiliary_scale_A)
            self.hidden_norm.copy_(state["layers.0.hidden_norm"])
            self.norm.copy_(state["norm"])
            for index, layer in enumerate(self.head_layers()):
                for name, value in layer.named_parameters():
                    value.copy_(state[f"layers.{index}.{name}"])


def auxiliary_width(config: DrafterConfig) -> int:
    """Width of the concatenated auxiliary hidden states."""
    return config.target_hidden_size * len(config.aux_layer_ids)


class HeadLayer(nn.Module):
    """One decoder layer; the first reads [norm(embedding) | norm(hidden)] and adds to the un-normed hidden state."""

    def __init__(self, config: DrafterConfig, *, is_first: bool) -> None:
        super().__init__()
        self._config = config
        width = 2 * config.hidden_size if is_first else config.hidden_size
        self.input_norm = nn.Parameter(torch.ones(config.hidden_size))
        self.post_attention_norm = nn.Parameter(torch.ones(config.hidden_size))
        self.q_proj = _matrix(config.num_attention_heads * config.head_dim, width)
        self.k_proj = _matrix(config.num_key_value_heads * config.head_dim, width)
        self.v_proj = _matrix(config.num_key_value_heads * config.head_dim, width)
        self.o_proj = _matrix(config.hidden_size, config.num_attention_heads * config.head_dim)
        self.gate_proj = _matrix(config.intermediate_size, config.hidden_size)
        self.up_proj = _matrix(config.intermediate_size, config.hidden_size)
        self.down_proj = _matrix(config.hidden_size, config.intermediate_size)

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
        eps = self._config.rms_norm_eps
        if embedded_RH is None:
            read = rms_norm(hidden_RH, self.input_norm, eps)
        else:
            read = torch.cat(
                [rms_norm(embedded_RH, self.input_norm, eps), rms_norm(hidden_RH, hidden_norm, eps)], dim=-1
            )
        hidden_RH = hidden_RH + self._attend(read, rotation, masks, compute_dtype)
        normed = rms_norm(hidden_RH, self.post_attention_norm, eps).to(compute_dtype)
        gated = functional.silu(functional.linear(normed, self.gate_proj.to(compute_dtype)))
        opened = gated * functional.linear(normed, self.up_proj.to(compute_dtype))
        return hidden_RH + linear(opened, self.down_proj, compute_dtype)

    def _attend(
        self, read: Tensor, rotation: tuple[Tensor, Tensor], masks: Sequence[Tensor], compute_dtype: torch.dtype
    ) -> Tensor:
        head_dim = self._config.head_dim
        read = read.to(compute_dtype)
        group = self._config.num_attention_heads // self._config.num_key_value_heads
        queries = rotate(linear(read, self.q_proj, compute_dtype).view(len(read), -1, head_dim), *rotation)
        keys = rotate(linear(read, self.k_proj, compute_dtype).view(len(read), -1, head_dim), *rotation)
        values = linear(read, self.v_proj, compute_dtype).view(len(read), -1, head_dim)
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
        return linear(torch.cat(attended), self.o_proj, compute_dtype)


def linear(rows: Tensor, weight: Tensor, compute_dtype: torch.dtype) -> Tensor:
    """A linear layer in `compute_dtype` with a float32 result."""
    return functional.linear(rows.to(compute_dtype), weight.to(compute_dtype)).float()


def _matrix(rows: int, columns: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, columns) * columns**-0.5 * 0.5)
