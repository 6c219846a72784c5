"""The target in torch: it writes the drafter's training text and judges its drafts.

Shape letters: B sequences, T new tokens of each, C cached positions, H hidden, Q query heads, N key-value heads,
D head dimension, V vocabulary, A auxiliary layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from peagle_trt.errors import CheckpointError
from peagle_trt.readers import read_target
from peagle_trt.spec.target import TargetConfig, default_aux_layer_ids

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# Two bf16 logits closer than this may stand in the wrong order: one unit in the last place at magnitude 64 is 0.5.
TIE_MARGIN = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValueCache:
    """Keys and values of every layer, written in place; both [layers, B, N, C, D]."""

    keys: Tensor
    values: Tensor

    def slot(self, index: int) -> KeyValueCache:
        """One sequence's part of the cache, sharing its memory."""
        return KeyValueCache(keys=self.keys[:, index : index + 1], values=self.values[:, index : index + 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOutput:
    """What one pass yields: `auxiliary_BTA` [B, T, A*H] in layer order, `normed_BTH` what lm_head reads."""

    auxiliary_BTA: Tensor
    normed_BTH: Tensor


class LlamaTarget:
    """A dense Llama with a cache that is addressed by slot and position.

    Linear layers run in `compute_dtype`, the residual stream and the norms in float32: on a CPU with AVX512-BF16 this
    is twice as fast as float32 and keeps the hidden states within bfloat16's rounding of a single layer.
    """

    def __init__(
        self,
        config: TargetConfig,
        weights: dict[str, Tensor],
        compute_dtype: torch.dtype,
        auxiliary_layers: tuple[int, ...],
    ) -> None:
        """Split the checkpoint's tensors by how they are used.

        Args:
            config: Sizes.
            weights: Tensors by our names (see `spec.names`); `lm_head` absent when tied.
            compute_dtype: Type of the linear layers.
            auxiliary_layers: Ids k of the residual streams ENTERING decoder layer k (vLLM's convention).
        """
        self.config = config
        self.auxiliary_layers = auxiliary_layers
        self.compute_dtype = compute_dtype
        self.weights = weights
        self.embeddings_VH = weights["embed_tokens"].float()
        self.head_VH = weights.get("lm_head", weights["embed_tokens"]).float()
        self._head_compute_VH = self.head_VH.to(compute_dtype)
        self._norm = weights["norm"].float()
        self._layers = tuple(_split_layer(weights, index, compute_dtype) for index in range(config.num_layers))
        self._cosines, self._sines = rotary_tables(config.head_dim, config.rope.theta, config.max_positions)

    def new_cache(self, num_slots: int, capacity: int) -> KeyValueCache:
        """An empty cache for `num_slots` sequences of at most `capacity` tokens."""
        import torch

        sizes = (self.config.num_layers, num_slots, self.config.num_key_value_heads, capacity, self.config.head_dim)
        return KeyValueCache(
            keys=torch.zeros(sizes, dtype=self.compute_dtype), values=torch.zeros(sizes, dtype=self.compute_dtype)
        )

    def run(self, token_ids_BT: Tensor, starts_B: Tensor, cache: KeyValueCache) -> TargetOutput:
        """Append T tokens to every sequence of the cache.

        Args:
            token_ids_BT: New tokens, [B, T] int64.
            starts_B: Tokens each sequence already has, [B] int64.
            cache: Written at `starts_B .. starts_B + T - 1`.

        Returns:
            Auxiliary and final hidden states of the new tokens, float32.
        """
        import torch

        positions_BT = starts_B[:, None] + torch.arange(token_ids_BT.shape[1])
        extent = int(positions_BT.max()) + 1
        group = self.config.num_attention_heads // self.config.num_key_value_heads
        hidden_columns_BTC = torch.arange(extent) > positions_BT[:, :, None]
        mask = torch.zeros(hidden_columns_BTC.shape, dtype=self.compute_dtype).masked_fill_(
            hidden_columns_BTC, -torch.inf
        )
        mask_B1RC = mask.repeat(1, group, 1)[:, None] if token_ids_BT.shape[1] > 1 else mask[:, None]
        rotation = (self._cosines[positions_BT][:, :, None], self._sines[positions_BT][:, :, None])
        hidden_BTH = self.embeddings_VH[token_ids_BT]
        captured = []
        for index, layer in enumerate(self._layers):
            if index in self.auxiliary_layers:
                captured.append(hidden_BTH.clone())
            attended = self._attend(layer, index, hidden_BTH, positions_BT, rotation, mask_B1RC, cache)
            hidden_BTH = hidden_BTH + attended
            hidden_BTH = hidden_BTH + layer.feed_forward(hidden_BTH, self.config.rms_norm_eps, self.compute_dtype)
        auxiliary = torch.cat(captured, dim=-1) if captured else hidden_BTH[..., :0]
        return TargetOutput(
            auxiliary_BTA=auxiliary, normed_BTH=rms_norm(hidden_BTH, self._norm, self.config.rms_norm_eps)
        )

    def logits(self, normed_RH: Tensor) -> Tensor:
        """Logits of R rows in float32, [R, V]; their precision is `compute_dtype`'s."""
        logits: Tensor = (normed_RH.to(self.compute_dtype) @ self._head_compute_VH.T).float()
        return logits

    def greedy_tokens(self, normed_RH: Tensor) -> Tensor:
        """The most likely token of each row, [R] int64, ties of low precision resolved in float32."""
        import torch

        logits_RV = self.logits(normed_RH)
        best_R = logits_RV.amax(dim=-1)
        if self.compute_dtype == torch.float32:
            return logits_RV.argmax(dim=-1)
        rows, tokens = torch.nonzero(logits_RV >= best_R[:, None] - TIE_MARGIN, as_tuple=True)
        exact = (normed_RH[rows] * self.head_VH[tokens]).sum(dim=-1)
        contest_RV = torch.full_like(logits_RV, -torch.inf)
        contest_RV[rows, tokens] = exact
        return contest_RV.argmax(dim=-1)

    def _attend(
        self,
        layer: _Layer,
        index: int,
        hidden_BTH: Tensor,
        positions_BT: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask_B1RC: Tensor,
        cache: KeyValueCache,
    ) -> Tensor:
        import torch
        import torch.nn.functional as functional

        config = self.config
        batch, new = hidden_BTH.shape[:2]
        normed = rms_norm(hidden_BTH, layer.input_norm, config.rms_norm_eps).to(self.compute_dtype)
        projected = functional.linear(normed, layer.query_key_value)
        queries, keys, values = torch.split(projected, list(layer.projection_sizes), dim=-1)
        queries_BTQD = rotate(queries.view(batch, new, config.num_attention_heads, config.head_dim).float(), *rotation)
        keys_BTND = rotate(keys.view(batch, new, config.num_key_value_heads, config.head_dim).float(), *rotation)
        sequences_B1 = torch.arange(batch)[:, None]
        cache.keys[index][sequences_B1, :, positions_BT] = keys_BTND.to(self.compute_dtype)
        cache.values[index][sequences_B1, :, positions_BT] = values.view(keys_BTND.shape)
        extent = mask_B1RC.shape[-1]
        # Query heads of one group become rows of one attention, so that keys are never repeated in memory.
        grouped = queries_BTQD.to(self.compute_dtype).view(batch, new, config.num_key_value_heads, -1, config.head_dim)
        rows_BNRD = grouped.permute(0, 2, 3, 1, 4).flatten(2, 3)
        attended = functional.scaled_dot_product_attention(
            rows_BNRD, cache.keys[index][:, :, :extent], cache.values[index][:, :, :extent], attn_mask=mask_B1RC
        )
        attended_BNGTD = attended.view(batch, config.num_key_value_heads, -1, new, config.head_dim)
        restored = attended_BNGTD.permute(0, 3, 1, 2, 4).flatten(2)
        result: Tensor = (restored @ layer.output.T).float()
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    input_norm: Tensor
    post_norm: Tensor
    query_key_value: Tensor
    projection_sizes: tuple[int, int, int]
    output: Tensor
    gate_up: Tensor
    down: Tensor

    def feed_forward(self, hidden_BTH: Tensor, eps: float, compute_dtype: torch.dtype) -> Tensor:
        """The layer's SwiGLU, float32 in and out."""
        import torch.nn.functional as functional

        normed = rms_norm(hidden_BTH, self.post_norm, eps).to(compute_dtype)
        gate, up = (normed @ self.gate_up.T).chunk(2, dim=-1)
        result: Tensor = ((functional.silu(gate) * up) @ self.down.T).float()
        return result


def read_llama(path: Path, compute_dtype: torch.dtype, auxiliary_layers: tuple[int, ...] | None = None) -> LlamaTarget:
    """Load a dense Llama into memory.

    Args:
        path: Checkpoint folder or GGUF file.
        compute_dtype: Type of the linear layers.
        auxiliary_layers: Layers to capture; the default, (2, n//2, n-3), needs seven layers.

    Returns:
        The target, ready to run.

    Raises:
        CheckpointError: The checkpoint is damaged, or has parts that this forward pass lacks.
    """
    import torch

    checkpoint = read_target(path)
    config = checkpoint.config
    extras = (config.has_qkv_bias, config.has_output_bias, config.has_mlp_bias, config.has_qk_norm, config.has_sinks)
    if any(extras) or config.attention_windows or config.experts is not None or config.rope.scaling != "none":
        raise CheckpointError(
            f"`{path}` has biases, per-head norms, scaled rotary embeddings, windows, sinks or experts",
            hint="training here knows plain Llama targets; train heads of others with vLLM's speculators",
        )
    weights = {name: torch.from_numpy(checkpoint.weights.load(name)) for name in checkpoint.weights}
    layers = auxiliary_layers or default_aux_layer_ids(config.num_layers)
    _check_layers(layers, config.num_layers)
    return LlamaTarget(config, weights, compute_dtype, layers)


def rms_norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last axis, in the input's type."""
    import torch.nn.functional as functional

    return functional.rms_norm(hidden, (hidden.shape[-1],), weight, eps)


def rotary_tables(head_dim: int, theta: float, positions: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the half-split rotary embedding, both [positions, D] float32."""
    import torch

    frequencies = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), frequencies)
    doubled = torch.cat([angles, angles], dim=-1)
    return doubled.cos().float(), doubled.sin().float()


def rotate(vectors: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Apply the half-split rotary embedding over the last axis."""
    import torch

    first, second = vectors.chunk(2, dim=-1)
    return vectors * cosines + torch.cat([-second, first], dim=-1) * sines


def _check_layers(layers: tuple[int, ...], num_layers: int) -> None:
    if list(layers) != sorted(set(layers)) or not all(0 < layer < num_layers for layer in layers):
        raise CheckpointError(
            f"auxiliary layers `{layers}` of a target with `{num_layers}` layers",
            hint="name some in ascending order, each above 0 and below the number of layers",
        )


def _split_layer(weights: dict[str, Tensor], index: int, compute_dtype: torch.dtype) -> _Layer:
    import torch

    prefix = f"layers.{index}."
    projections = [weights[f"{prefix}{name}_proj"] for name in "qkv"]
    feed_forward = [weights[f"{prefix}{name}_proj"] for name in ("gate", "up")]
    query, key, value = (projection.shape[0] for projection in projections)
    return _Layer(
        input_norm=weights[f"{prefix}input_norm"].float(),
        post_norm=weights[f"{prefix}post_attention_norm"].float(),
        query_key_value=torch.cat(projections).to(compute_dtype),
        projection_sizes=(query, key, value),
        output=weights[f"{prefix}o_proj"].to(compute_dtype),
        gate_up=torch.cat(feed_forward).to(compute_dtype),
        down=weights[f"{prefix}down_proj"].to(compute_dtype),
    )
