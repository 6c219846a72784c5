"""The target in torch: it writes the drafter's training text and judges its drafts.

Shape letters: B sequences, T new tokens of each, R rows, H hidden, V vocabulary, A auxiliary width.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from peagle_trt.errors import CheckpointError
from peagle_trt.readers import read_target
from peagle_trt.spec.target import TargetConfig, default_aux_layer_ids
from peagle_trt.train.experts import MixtureOfExperts, SwiGlu, load_feed_forward
from peagle_trt.train.rotary import rms_norm, rotary_tables
from peagle_trt.train.target_attention import Attention, KeyValueCache, NewTokens, load_attention, make_masks
from peagle_trt.train.target_weights import WeightLoader, require_memory

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from peagle_trt.readers.tensors import Weights

# Two bf16 logits closer than this may stand in the wrong order: one unit in the last place at magnitude 64 is 0.5.
TIE_MARGIN = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOutput:
    """What one pass yields: `auxiliary_BTA` [B, T, A*H] in layer order, `normed_BTH` what lm_head reads."""

    auxiliary_BTA: Tensor
    normed_BTH: Tensor


class TorchTarget:
    """Any target that the readers know, with a cache that is addressed by slot and position.

    Linear layers run in `compute_dtype`, the residual stream, the norms and routers in float32: on a CPU with
    AVX512-BF16 this is twice as fast as float32 and keeps the hidden states within bfloat16's rounding of a single
    layer.
    """

    def __init__(
        self,
        config: TargetConfig,
        weights: Weights,
        compute_dtype: torch.dtype,
        auxiliary_layers: tuple[int, ...],
        device: torch.device,
    ) -> None:
        """Load the checkpoint's tensors, one at a time.

        Args:
            config: Sizes.
            weights: Tensors by our names (see `spec.names`).
            compute_dtype: Type of the linear layers.
            auxiliary_layers: Ids k of the residual streams ENTERING decoder layer k (vLLM's convention).
            device: Where all of it runs.
        """
        self.config, self.weights = config, weights
        self.auxiliary_layers = auxiliary_layers
        self.compute_dtype, self.device = compute_dtype, device
        loader = WeightLoader(weights=weights, compute_dtype=compute_dtype, device=device)
        self.embeddings_VH = loader.exact("embed_tokens")
        self.head_VH = self.embeddings_VH if config.is_tied else loader.exact("lm_head")
        self._head_compute_VH = self.head_VH.to(compute_dtype)
        self._norm = loader.exact("norm")
        self._layers = tuple(_load_layer(loader, config, index) for index in range(config.num_layers))
        tables = rotary_tables(config.rope, config.head_dim, config.max_positions)
        self._cosines, self._sines = (table.to(device) for table in tables)

    def new_cache(self, num_slots: int, capacity: int) -> KeyValueCache:
        """An empty cache for `num_slots` sequences of at most `capacity` tokens."""
        import torch

        config = self.config
        rows = capacity + 1 if config.has_sinks else capacity
        sizes = (config.num_layers, num_slots, config.num_key_value_heads, rows, config.head_dim)
        keys, values = (torch.zeros(sizes, dtype=self.compute_dtype, device=self.device) for _ in range(2))
        return KeyValueCache(keys=keys, values=values)

    def run(self, token_ids_BT: Tensor, starts_B: Tensor, cache: KeyValueCache) -> TargetOutput:
        """Append T tokens to every sequence of the cache.

        Args:
            token_ids_BT: New tokens, [B, T] int64, wherever they are.
            starts_B: Tokens each sequence already has, [B] int64, likewise.
            cache: Written at `starts_B .. starts_B + T - 1`.

        Returns:
            Auxiliary and final hidden states of the new tokens, float32.
        """
        import torch

        config, token_ids_BT = self.config, token_ids_BT.to(self.device)
        positions_BT = starts_B.to(self.device)[:, None] + torch.arange(token_ids_BT.shape[1], device=self.device)
        new = NewTokens(
            positions_BT=positions_BT,
            rotation=(self._cosines[positions_BT][:, :, None], self._sines[positions_BT][:, :, None]),
            masks=make_masks(
                positions_BT,
                [layer.attention.window for layer in self._layers],
                config.num_attention_heads // config.num_key_value_heads,
                self.compute_dtype,
            ),
        )
        hidden_BTH = self.embeddings_VH[token_ids_BT]
        captured = []
        for index, layer in enumerate(self._layers):
            if index in self.auxiliary_layers:
                captured.append(hidden_BTH.clone())
            normed = self._normalise(hidden_BTH, layer.input_norm).to(self.compute_dtype)
            hidden_BTH = hidden_BTH + layer.attention(normed, new, cache.keys[index], cache.values[index])
            normed = self._normalise(hidden_BTH, layer.post_norm).to(self.compute_dtype)
            hidden_BTH = hidden_BTH + layer.feed_forward(normed)
        auxiliary = torch.cat(captured, dim=-1) if captured else hidden_BTH[..., :0]
        return TargetOutput(auxiliary_BTA=auxiliary, normed_BTH=self._normalise(hidden_BTH, self._norm))

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

    def _normalise(self, hidden_BTH: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(hidden_BTH, weight, self.config.rms_norm_eps)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    input_norm: Tensor
    attention: Attention
    post_norm: Tensor
    feed_forward: SwiGlu | MixtureOfExperts


def read_torch_target(
    path: Path,
    compute_dtype: torch.dtype,
    auxiliary_layers: tuple[int, ...] | None = None,
    *,
    device: str | torch.device = "cpu",
) -> TorchTarget:
    """Load a target into memory.

    Experts that are stored in MXFP4 stay in it and are widened one by one, when a token is sent there.

    Args:
        path: Checkpoint folder or GGUF file.
        compute_dtype: Type of the linear layers.
        auxiliary_layers: Layers to capture; the default, (2, n//2, n-3), needs seven layers.
        device: Where it runs.

    Returns:
        The target, ready to run.

    Raises:
        CheckpointError: The checkpoint is damaged, or lacks the layers.
        MachineError: It does not fit into memory.
    """
    import torch

    checkpoint, place = read_target(path), torch.device(device)
    layers = auxiliary_layers or default_aux_layer_ids(checkpoint.config.num_layers)
    _check_layers(layers, checkpoint.config.num_layers)
    require_memory(path, checkpoint.weights, compute_dtype, place)
    return TorchTarget(checkpoint.config, checkpoint.weights, compute_dtype, layers, place)


def _check_layers(layers: tuple[int, ...], num_layers: int) -> None:
    if list(layers) != sorted(set(layers)) or not all(0 < layer < num_layers for layer in layers):
        raise CheckpointError(
            f"auxiliary layers `{layers}` of a target with `{num_layers}` layers",
            hint="name some in ascending order, each above 0 and below the number of layers",
        )


def _load_layer(loader: WeightLoader, config: TargetConfig, index: int) -> _Layer:
    prefix = f"layers.{index}."
    return _Layer(
        input_norm=loader.exact(f"{prefix}input_norm"),
        attention=load_attention(loader, prefix, config, config.attention_window(index)),
        post_norm=loader.exact(f"{prefix}post_attention_norm"),
        feed_forward=load_feed_forward(loader, prefix, config.experts),
    )
