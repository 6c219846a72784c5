"""The sizes of a model that decide what a pass costs."""

from __future__ import annotations

import msgspec

from peagle_trt.spec import DrafterConfig, TargetConfig


class Geometry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of a target or a drafter.

    Attributes:
        hidden_size: Width of the residual stream.
        intermediate_size: Width of a feed-forward block, or of one expert.
        num_layers: Layers.
        num_attention_heads: Query heads.
        num_key_value_heads: Key/value heads.
        head_dim: Width of a head.
        output_rows: Rows of the output layer.
        embedding_rows: Rows of an embedding table that is stored beside the output layer; 0 where it is that layer, or
            another model's.
        num_experts: Experts of a layer; 0 for a dense feed-forward block.
        experts_per_token: Experts a row is sent to; 0 for a dense block.
        window: Tokens that windowed layers look back at; 0 where there are none.
        num_windowed_layers: How many layers have that window.
        fused_size: Width of the auxiliary states that a drafter's `fc` reads; 0 for a target. A drafter's layer 0 reads
            twice `hidden_size`.
        max_positions: Context length, in tokens.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    output_rows: int
    max_positions: int
    embedding_rows: int = 0
    num_experts: int = 0
    experts_per_token: int = 0
    window: int = 0
    num_windowed_layers: int = 0
    fused_size: int = 0

    @property
    def attention_parameters(self) -> int:
        """Elements of the attention projections of all layers, and of a drafter's `fc`."""
        keys = 2 * self.num_key_value_heads * self.head_dim
        queries = self.num_attention_heads * self.head_dim
        layer = self.hidden_size * (2 * queries + keys)
        extra = self.hidden_size * (queries + keys + self.fused_size) if self.fused_size else 0
        return self.num_layers * layer + extra

    @property
    def block_parameters(self) -> int:
        """Elements of one feed-forward block, or of one expert."""
        return 3 * self.hidden_size * self.intermediate_size

    @property
    def router_parameters(self) -> int:
        """Elements of the routers of all layers."""
        return self.num_layers * self.num_experts * self.hidden_size

    @property
    def feed_forward_parameters(self) -> int:
        """Elements of all feed-forward blocks, every expert counted."""
        return self.num_layers * max(1, self.num_experts) * self.block_parameters

    @property
    def head_parameters(self) -> int:
        """Elements of the output layer."""
        return self.output_rows * self.hidden_size

    @property
    def cache_elements_per_token(self) -> int:
        """Keys and values of one token in one layer."""
        return 2 * self.num_key_value_heads * self.head_dim

    def attended_tokens(self, context_tokens: float) -> float:
        """Tokens that one row looks at, summed over layers, at a context of that length."""
        full = self.num_layers - self.num_windowed_layers
        return full * context_tokens + self.num_windowed_layers * min(context_tokens, self.window)


def target_geometry(config: TargetConfig) -> Geometry:
    """Sizes of a target."""
    windows = [window for window in config.attention_windows if window]
    experts = config.experts
    return Geometry(
        hidden_size=config.hidden_size,
        intermediate_size=experts.intermediate_size if experts else config.intermediate_size,
        num_layers=config.num_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        output_rows=config.vocab_size,
        embedding_rows=0 if config.is_tied else config.vocab_size,
        num_experts=experts.num_experts if experts else 0,
        experts_per_token=experts.experts_per_token if experts else 0,
        # The widest: layers of several widths are rare, and this errs to more bytes.
        window=max(windows, default=0),
        num_windowed_layers=len(windows),
        max_positions=config.max_positions,
    )


def drafter_geometry(config: DrafterConfig) -> Geometry:
    """Sizes of a drafter."""
    windows = [window for window in config.attention_windows if window]
    return Geometry(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        output_rows=config.draft_vocab_size,
        embedding_rows=config.vocab_size if config.has_own_embeddings else 0,
        window=max(windows, default=0),
        num_windowed_layers=len(windows),
        fused_size=len(config.aux_layer_ids) * config.target_hidden_size,
        max_positions=config.max_positions,
    )
