"""Attention of a target's layer over a cache that is addressed by slot and position.

Shape letters: B sequences, T new tokens of each, C cached positions, H hidden, Q query heads, N key-value heads,
R rows of a key-value head (its query heads times T), D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from peagle_trt.train.rotary import rms_norm, rotate
from peagle_trt.train.target_weights import Linear, WeightLoader

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from peagle_trt.spec import TargetConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValueCache:
    """Keys and values of every layer, written in place; both [layers, B, N, C, D].

    A target with sinks keeps one more row in front, which stays zero: its key's score is the sink, its value nothing.
    """

    keys: Tensor
    values: Tensor

    def slot(self, index: int) -> KeyValueCache:
        """One sequence's part of the cache, sharing its memory."""
        return KeyValueCache(keys=self.keys[:, index : index + 1], values=self.values[:, index : index + 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTokens:
    """What all layers need to know of a pass.

    Attributes:
        positions_BT: Of the tokens, int64.
        rotation: Cosines and sines, [B, T, 1, D] each.
        masks: By window: additive, [B, 1, R, C], or [B, 1, 1, C] of a pass of one token.
    """

    positions_BT: Tensor
    rotation: tuple[Tensor, Tensor]
    masks: dict[int, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """One layer's.

    Attributes:
        config: Sizes.
        query_key_value: The three projections, one below the other.
        output: Back to the residual stream.
        head_norms: Norms of queries and keys per head, before their rotation, or None.
        sinks_Q: What every query head's softmax counts and leaves out, in the type of the products, or None.
        window: Tokens that a row looks back at, itself included; 0 for all.
    """

    config: TargetConfig
    query_key_value: Linear
    output: Linear
    head_norms: tuple[Tensor, Tensor] | None
    sinks_Q: Tensor | None
    window: int

    def __call__(self, normed_BTH: Tensor, new: NewTokens, keys_BNCD: Tensor, values_BNCD: Tensor) -> Tensor:
        """Attend over the cache, into which the new tokens are written first; float32 [B, T, H]."""
        import torch
        import torch.nn.functional as functional

        config, (batch, length) = self.config, normed_BTH.shape[:2]
        queries_BTQD, keys_BTND, values_BTND = self._project(normed_BTH, new.rotation)
        first = 0 if self.sinks_Q is None else 1
        sequences_B1 = torch.arange(batch, device=normed_BTH.device)[:, None]
        keys_BNCD[sequences_B1, :, new.positions_BT + first] = keys_BTND.to(keys_BNCD.dtype)
        values_BNCD[sequences_B1, :, new.positions_BT + first] = values_BTND.to(values_BNCD.dtype)
        # Query heads of one group become rows of one attention, so that keys are never repeated in memory.
        grouped = queries_BTQD.to(keys_BNCD.dtype).view(batch, length, config.num_key_value_heads, -1, config.head_dim)
        mask = new.masks[self.window]
        extent = mask.shape[-1] + first
        attended = functional.scaled_dot_product_attention(
            grouped.permute(0, 2, 3, 1, 4).flatten(2, 3),
            keys_BNCD[:, :, :extent],
            values_BNCD[:, :, :extent],
            attn_mask=mask if self.sinks_Q is None else self._with_sinks(self.sinks_Q, mask, length),
        )
        attended_BNGTD = attended.view(batch, config.num_key_value_heads, -1, length, config.head_dim)
        return self.output(attended_BNGTD.permute(0, 3, 1, 2, 4).flatten(2)).float()

    def _project(self, normed_BTH: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, float32, and values."""
        import torch

        config = self.config
        widths = [heads * config.head_dim for heads in (config.num_attention_heads, *[config.num_key_value_heads] * 2)]
        parts = torch.split(self.query_key_value(normed_BTH), widths, dim=-1)
        queries, keys, values = (part.view(*part.shape[:2], -1, config.head_dim) for part in parts)
        queries, keys = queries.float(), keys.float()
        if self.head_norms is not None:
            queries, keys = (
                rms_norm(part, weight, config.rms_norm_eps)
                for part, weight in zip((queries, keys), self.head_norms, strict=True)
            )
        return rotate(queries, *rotation), rotate(keys, *rotation), values

    def _with_sinks(self, sinks_Q: Tensor, mask: Tensor, length: int) -> Tensor:
        """The mask behind a column of each head's sink, [B, N, R, 1 + C]."""
        import torch

        num_heads = self.config.num_key_value_heads
        sinks_NR1 = sinks_Q.view(num_heads, -1).repeat_interleave(length, dim=1)[..., None]
        sizes = (mask.shape[0], num_heads, sinks_NR1.shape[1])
        return torch.cat([sinks_NR1.expand(*sizes, 1), mask.expand(*sizes, -1)], dim=-1)


def load_attention(loader: WeightLoader, prefix: str, config: TargetConfig, window: int) -> Attention:
    """The attention of one layer; `prefix` is `layers.{i}.`."""
    norms = (loader.optional(f"{prefix}q_norm"), loader.optional(f"{prefix}k_norm"))
    sinks_Q = loader.optional(f"{prefix}sinks")
    return Attention(
        config=config,
        query_key_value=loader.linear(prefix, "q", "k", "v"),
        output=loader.linear(prefix, "o"),
        head_norms=None if norms[0] is None or norms[1] is None else (norms[0], norms[1]),
        sinks_Q=None if sinks_Q is None else sinks_Q.to(loader.compute_dtype),
        window=window,
    )


def make_masks(
    positions_BT: Tensor, windows: Sequence[int], group: int, compute_dtype: torch.dtype
) -> dict[int, Tensor]:
    """An additive mask a window; see `NewTokens`.

    Args:
        positions_BT: Of the new tokens.
        windows: 0 for all tokens.
        group: Query heads a key-value head.
        compute_dtype: Of the masks.
    """
    import torch

    extent = int(positions_BT.max()) + 1
    distance_BTC = positions_BT[:, :, None] - torch.arange(extent, device=positions_BT.device)
    masks = {}
    for window in sorted(set(windows)):
        is_hidden = distance_BTC < 0
        if window:
            is_hidden = is_hidden | (distance_BTC >= window)
        mask = torch.zeros(is_hidden.shape, dtype=compute_dtype, device=is_hidden.device)
        mask.masked_fill_(is_hidden, -torch.inf)
        masks[window] = mask.repeat(1, group, 1)[:, None] if mask.shape[1] > 1 else mask[:, None]
    return masks
