"""The P-EAGLE or EAGLE-3 drafter in torch, over the flat rows of several sequences or over pieces of one.

Shape letters: R rows of all sequences, H drafter hidden, T target hidden, A auxiliary width (3T), Q query heads,
N key-value heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

import torch
import torch.nn.functional as functional
from torch import nn

from peagle_trt.train.rotary import rms_norm, rotary_tables, rotate
from peagle_trt.train.row_attention import KeysValues, MaskTables, SequenceRows, attend_rows, make_mask_tables

if TYPE_CHECKING:
    from torch import Tensor

    from peagle_trt.spec import DrafterConfig

    # Of one layer: rotated queries, keys and values of all rows to [R, Q*D].
    Attend = Callable[[Tensor, KeysValues], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadRows:
    """What the drafter reads, flat over sequences; attention stays inside each sequence.

    Attributes:
        token_ids_R: Token of each slot; the mask id on mask rows.
        auxiliary_RA: Target's hidden states, float; anything on mask rows.
        is_mask_R: Rows that carry `mask_hidden`.
        positions_R: Rotary positions.
        layouts: What each sequence's rows are; their sizes cut R into sequences.
    """

    token_ids_R: Tensor
    auxiliary_RA: Tensor
    is_mask_R: Tensor
    positions_R: Tensor
    layouts: Sequence[SequenceRows]


class PeagleHead(nn.Module):
    """fc, a fusion layer that reads [embedding | hidden], ordinary layers, a final norm.

    A plain EAGLE-3 head is the same without `mask_hidden`.

    The auxiliary states' columns differ in size by orders of magnitude, so `fc` is trained on columns divided by
    `auxiliary_scale_A`; `folded_state` multiplies it back, and a checkpoint holds the plain architecture.
    """

    auxiliary_scale_A: Tensor
    mask_hidden_A: nn.Parameter | None
    _cosines: Tensor
    _sines: Tensor
    _context_table: Tensor
    _rollout_table: Tensor

    def __init__(
        self, config: DrafterConfig, auxiliary_scale_A: Tensor, compute_dtype: torch.dtype = torch.float32
    ) -> None:
        """Random weights.

        Args:
            config: Sizes; optional norms and biases are not known here.
            auxiliary_scale_A: Typical magnitude of each auxiliary column, [A], positive.
            compute_dtype: Type of the linear layers; norms and residuals stay float32.
        """
        super().__init__()
        self.config, self.compute_dtype = config, compute_dtype
        self.register_buffer("auxiliary_scale_A", auxiliary_scale_A.float())
        self.fc = _matrix(config.hidden_size, auxiliary_width(config))
        # Drawn for either kind, so that a seed gives both the same other weights.
        mask_hidden_A = nn.Parameter(torch.randn(auxiliary_width(config)))
        self.register_parameter("mask_hidden_A", mask_hidden_A if config.is_parallel else None)
        self.hidden_norm = nn.Parameter(torch.ones(config.hidden_size))
        self.layers = nn.ModuleList(HeadLayer(config, is_first=index == 0) for index in range(config.num_layers))
        self.norm = nn.Parameter(torch.ones(config.hidden_size))
        cosines, sines = rotary_tables(config.rope, config.head_dim, config.max_positions)
        self.register_buffer("_cosines", cosines, persistent=False)
        self.register_buffer("_sines", sines, persistent=False)
        tables = make_mask_tables(config.max_positions)
        self.register_buffer("_context_table", tables.context, persistent=False)
        self.register_buffer("_rollout_table", tables.rollouts, persistent=False)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.norm.device

    def forward(
        self,
        rows: HeadRows,
        embeddings_VH: Tensor,
        prefix: Sequence[KeysValues] | None = None,
        written: list[KeysValues] | None = None,
    ) -> Tensor:
        """Final hidden states, lm_head's input.

        Args:
            rows: Slots of one or more sequences.
            embeddings_VH: The target's embedding table.
            prefix: Keys and values of each layer for the context before the rows; then they are of one sequence.
            written: Takes the keys and values of all rows, one entry a layer.

        Returns:
            [R, H] float32, after the final norm.
        """
        return self.normalise(self.stream(rows, embeddings_VH, prefix, written))

    def stream(
        self,
        rows: HeadRows,
        embeddings_VH: Tensor,
        prefix: Sequence[KeysValues] | None = None,
        written: list[KeysValues] | None = None,
    ) -> Tensor:
        """The rows after the last layer, [R, H] float32, before the final norm; arguments are those of `forward`."""
        hidden_RH, rotation, first = self._enter(rows, embeddings_VH)
        for index, layer in enumerate(self.head_layers()):
            attend = self._attention(rows, None if prefix is None else prefix[index], written)
            hidden_RH = layer(hidden_RH, first, self.hidden_norm, rotation, attend, self.compute_dtype)
            first = None
        return hidden_RH

    def continue_stream(
        self,
        hidden_RH: Tensor,
        token_ids_R: Tensor,
        positions_R: Tensor,
        embeddings_VH: Tensor,
        attend: Callable[[int, Tensor, KeysValues], Tensor],
    ) -> Tensor:
        """The stream of rows whose state is the head's own, past `fc`: a pass of a sequential head after its first.

        Args:
            hidden_RH: What the pass before handed on.
            token_ids_R: Tokens that it drafted.
            positions_R: Rotary positions.
            embeddings_VH: The target's embedding table.
            attend: Attention of a layer, by its index.

        Returns:
            [R, H] float32, before the final norm.
        """
        rotation = (self._cosines[positions_R][:, None], self._sines[positions_R][:, None])
        first: Tensor | None = embeddings_VH[token_ids_R]
        for index, layer in enumerate(self.head_layers()):
            hidden_RH = layer(hidden_RH, first, self.hidden_norm, rotation, partial(attend, index), self.compute_dtype)
            first = None
        return hidden_RH

    def normalise(self, stream_RH: Tensor) -> Tensor:
        """lm_head's input, the stream after the final norm."""
        return rms_norm(stream_RH, self.norm, self.config.rms_norm_eps)

    def keys_values(
        self, rows: HeadRows, embeddings_VH: Tensor, prefix: Sequence[KeysValues] | None = None
    ) -> list[KeysValues]:
        """Keys and values of all rows in every layer, and nothing else: the last layer runs no query.

        Args:
            rows: Slots of one sequence, context only.
            embeddings_VH: The target's embedding table.
            prefix: Keys and values of each layer for the context before the rows.

        Returns:
            One entry a layer.
        """
        hidden_RH, rotation, first = self._enter(rows, embeddings_VH)
        written: list[KeysValues] = []
        *lower, last = self.head_layers()
        for index, layer in enumerate(lower):
            attend = self._attention(rows, None if prefix is None else prefix[index], written)
            hidden_RH = layer(hidden_RH, first, self.hidden_norm, rotation, attend, self.compute_dtype)
            first = None
        read = last.read(hidden_RH, first, self.hidden_norm, self.compute_dtype)
        written.append(last.keys_values(read, rotation, self.compute_dtype))
        return written

    def _enter(self, rows: HeadRows, embeddings_VH: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor | None]:
        """Layer 0's hidden input, the rotation of the rows, their embeddings."""
        hidden_RH = linear(self.scaled_states(rows), self.fc, self.compute_dtype)
        rotation = (self._cosines[rows.positions_R][:, None], self._sines[rows.positions_R][:, None])
        return hidden_RH, rotation, embeddings_VH[rows.token_ids_R]

    def scaled_states(self, rows: HeadRows) -> Tensor:
        """What `fc` reads, [R, A]: the target's states in their columns' scale, `mask_hidden` on mask rows."""
        scaled_RA = rows.auxiliary_RA / self.auxiliary_scale_A
        if self.mask_hidden_A is None:
            return scaled_RA
        return torch.where(rows.is_mask_R[:, None], self.mask_hidden_A, scaled_RA)

    def _attention(self, rows: HeadRows, prefix: KeysValues | None, written: list[KeysValues] | None) -> Attend:
        tables = MaskTables(context=self._context_table, rollouts=self._rollout_table)

        def attend(queries_RQD: Tensor, own: KeysValues) -> Tensor:
            if written is not None:
                written.append(own)
            return attend_rows(queries_RQD, own, rows.layouts, tables, self.compute_dtype, prefix)

        return attend

    def head_layers(self) -> list[HeadLayer]:
        """The decoder layers, the fusion layer first."""
        return cast("list[HeadLayer]", list(self.layers))

    def folded_state(self) -> dict[str, Tensor]:
        """The weights by our names (see `spec.names`), without the training-time scale."""
        state = {
            "fc": self.fc / self.auxiliary_scale_A,
            "layers.0.hidden_norm": self.hidden_norm,
            "norm": self.norm,
        }
        if self.mask_hidden_A is not None:
            state["mask_hidden"] = self.mask_hidden_A * self.auxiliary_scale_A
        for index, layer in enumerate(self.head_layers()):
            state.update({f"layers.{index}.{name}": value for name, value in layer.named_parameters()})
        return {name: value.detach().clone() for name, value in state.items()}

    def load_folded_state(self, state: dict[str, Tensor]) -> None:
        """The inverse of `folded_state`; every tensor must be there."""
        with torch.no_grad():
            self.fc.copy_(state["fc"].float() * self.auxiliary_scale_A)
            if self.mask_hidden_A is not None:
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
        attend: Attend,
        compute_dtype: torch.dtype,
    ) -> Tensor:
        """One layer over all rows; `embedded_RH` is given to the first layer only."""
        read = self.read(hidden_RH, embedded_RH, hidden_norm, compute_dtype)
        queries = rotate(linear(read, self.q_proj, compute_dtype).view(len(read), -1, self._config.head_dim), *rotation)
        attended = attend(queries, self.keys_values(read, rotation, compute_dtype))
        hidden_RH = hidden_RH + linear(attended, self.o_proj, compute_dtype)
        normed = rms_norm(hidden_RH, self.post_attention_norm, self._config.rms_norm_eps).to(compute_dtype)
        gated = functional.silu(functional.linear(normed, self.gate_proj.to(compute_dtype)))
        opened = gated * functional.linear(normed, self.up_proj.to(compute_dtype))
        return hidden_RH + linear(opened, self.down_proj, compute_dtype)

    def read(
        self, hidden_RH: Tensor, embedded_RH: Tensor | None, hidden_norm: Tensor, compute_dtype: torch.dtype
    ) -> Tensor:
        """What the projections see: the normed hidden state, behind the normed embedding in the first layer."""
        eps = self._config.rms_norm_eps
        if embedded_RH is None:
            return rms_norm(hidden_RH, self.input_norm, eps).to(compute_dtype)
        halves = [rms_norm(embedded_RH, self.input_norm, eps), rms_norm(hidden_RH, hidden_norm, eps)]
        return torch.cat(halves, dim=-1).to(compute_dtype)

    def keys_values(self, read: Tensor, rotation: tuple[Tensor, Tensor], compute_dtype: torch.dtype) -> KeysValues:
        """Rotated keys and values of all rows, float32."""
        head_dim = self._config.head_dim
        keys = linear(read, self.k_proj, compute_dtype).view(len(read), -1, head_dim)
        values = linear(read, self.v_proj, compute_dtype).view(len(read), -1, head_dim)
        return KeysValues(keys=rotate(keys, *rotation), values=values)


def linear(rows: Tensor, weight: Tensor, compute_dtype: torch.dtype) -> Tensor:
    """A linear layer in `compute_dtype` with a float32 result."""
    return functional.linear(rows.to(compute_dtype), weight.to(compute_dtype)).float()


def _matrix(rows: int, columns: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, columns) * columns**-0.5 * 0.5)
