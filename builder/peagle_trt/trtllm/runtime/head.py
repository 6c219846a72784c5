"""The P-EAGLE head as it is served: one pass over flat rows, keys and values kept in a cache of its own.

Letters: R rows, H drafter's hidden size, A auxiliary width, Q query heads, N key-value heads, D head dimension,
L layers, S slots, C places of a slot, V target's vocabulary, E draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from peagle_trt.graph.rope import amplitude, inverse_frequencies
from peagle_trt.spec import DrafterConfig

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Of one layer: queries [R, Q, D] and the layer's keys and values [S, C, N, D] to [R, Q, D]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatRows:
    """Rows of a pass, of all its requests.

    Attributes:
        token_ids_R: Tokens.
        hidden_RH: States, past `fc`.
        slots_R: Slot of every row.
        positions_R: Place of every row in its slot, and its rotary position.
    """

    token_ids_R: Tensor
    hidden_RH: Tensor
    slots_R: Tensor
    positions_R: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCache:
    """Keys and values of every layer, [L, S, C, N, D] each, written in place."""

    keys: Tensor
    values: Tensor


class ServedHead:
    """A head with its weights on one device.

    It is no `nn.Module`: TensorRT-LLM would load, move and quantize the parameters of one by rules of its own.

    Args:
        config: The head.
        weights: Tensors by our names (see `spec.names`), all on one device; matrices of one floating type.
        embed: Tokens to embeddings where the head has no table of its own: the target's.
        output_layer: Final states to logits where the head has none of its own: the target's.
    """

    def __init__(
        self,
        config: DrafterConfig,
        weights: Mapping[str, Tensor],
        *,
        embed: Callable[[Tensor], Tensor] | None = None,
        output_layer: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.config = config
        self._weights = dict(weights)
        self._embed = embed if embed is not None else self._own_embedding
        self._output_layer = output_layer if output_layer is not None else self._own_output_layer
        self.dtype, self.device = self._weights["fc"].dtype, self._weights["fc"].device
        frequencies = torch.from_numpy(inverse_frequencies(config.rope, config.head_dim))
        self._frequencies = frequencies.to(self.device)
        self._amplitude = amplitude(config.rope)
        self.fused_mask_H = self.fuse(self._weights["mask_hidden"].reshape(1, -1))[0]

    def new_cache(self, num_slots: int, capacity: int) -> DraftCache:
        """An empty cache; zeros, since what attention multiplies by nothing must still be a number."""
        config = self.config
        sizes = (config.num_layers, num_slots, capacity, config.num_key_value_heads, config.head_dim)
        keys, values = (torch.zeros(sizes, dtype=self.dtype, device=self.device) for _ in range(2))
        return DraftCache(keys=keys, values=values)

    def fuse(self, auxiliary_RA: Tensor) -> Tensor:
        """Auxiliary states to the drafter's width: optional norms, then `fc`."""
        states = auxiliary_RA.to(self.dtype)
        if self.config.norm_before_fc:
            states = self._norm(states, "input_norm")
        if self.config.has_fc_norm:
            parts = states.chunk(len(self.config.aux_layer_ids), dim=-1)
            states = torch.cat([self._norm(part, f"fc_norm.{index}") for index, part in enumerate(parts)], dim=-1)
        return functional.linear(states, self._weights["fc"])

    def run(self, rows: FlatRows, cache: DraftCache, attend: Attend) -> Tensor:
        """The stream after the last layer, [R, H]; writes the rows' keys and values first, layer by layer."""
        angles_RD = rows.positions_R[:, None].float() * self._frequencies
        rotation = (angles_RD.cos() * self._amplitude)[:, None], (angles_RD.sin() * self._amplitude)[:, None]
        stream_RH = rows.hidden_RH
        for layer in range(self.config.num_layers):
            prefix = f"layers.{layer}."
            read = self._norm(stream_RH, prefix + "input_norm") if layer else self._enter(rows, stream_RH)
            queries, keys, values = self._project(prefix, read)
            keys_SCND, values_SCND = cache.keys[layer], cache.values[layer]
            keys_SCND[rows.slots_R, rows.positions_R] = _rotate(keys, *rotation).to(self.dtype)
            values_SCND[rows.slots_R, rows.positions_R] = values
            mixed = attend(_rotate(queries, *rotation).to(self.dtype), keys_SCND, values_SCND)
            stream_RH = stream_RH + self._linear(prefix, "o", mixed.flatten(1), has_bias=self.config.has_output_bias)
            stream_RH = stream_RH + self._feed_forward(prefix, stream_RH)
        return stream_RH

    def draft(self, stream_RH: Tensor) -> Tensor:
        """The likeliest token after every row, [R] int32, of the target's vocabulary."""
        ids_R = self._output_layer(self._norm(stream_RH, "norm")).argmax(dim=-1)
        if self.config.has_vocabulary_map:
            ids_R = ids_R + self._weights["d2t"][ids_R]
        return ids_R.int()

    def _enter(self, rows: FlatRows, hidden_RH: Tensor) -> Tensor:
        """What layer 0 reads, [R, 2H]: the embedding first, the state second."""
        embedded_RH = self._embed(rows.token_ids_R).to(self.dtype)
        halves = self._norm(embedded_RH, "layers.0.input_norm"), self._norm(hidden_RH, "layers.0.hidden_norm")
        return torch.cat(halves, dim=-1)

    def _project(self, prefix: str, read: Tensor) -> list[Tensor]:
        has_bias = self.config.has_attention_bias
        return [
            self._linear(prefix, kind, read, has_bias=has_bias).view(len(read), -1, self.config.head_dim)
            for kind in ("q", "k", "v")
        ]

    def _feed_forward(self, prefix: str, stream_RH: Tensor) -> Tensor:
        has_bias = self.config.has_mlp_bias
        normed = self._norm(stream_RH, prefix + "post_attention_norm")
        gate, up = (self._linear(prefix, kind, normed, has_bias=has_bias) for kind in ("gate", "up"))
        return self._linear(prefix, "down", functional.silu(gate) * up, has_bias=has_bias)

    def _linear(self, prefix: str, kind: str, rows: Tensor, *, has_bias: bool) -> Tensor:
        bias = self._weights[f"{prefix}{kind}_bias"] if has_bias else None
        return functional.linear(rows, self._weights[f"{prefix}{kind}_proj"], bias)

    def _norm(self, rows: Tensor, name: str) -> Tensor:
        wide = rows.float()
        scaled = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.config.rms_norm_eps)
        return (scaled * self._weights[name].float()).to(self.dtype)

    def _own_embedding(self, token_ids: Tensor) -> Tensor:
        return functional.embedding(token_ids, self._weights["embed_tokens"])

    def _own_output_layer(self, rows: Tensor) -> Tensor:
        return functional.linear(rows, self._weights["lm_head"])


def _rotate(heads_RND: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate the pairs (i, i + D/2) of every head, in float32."""
    first, second = heads_RND.float().chunk(2, dim=-1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)
