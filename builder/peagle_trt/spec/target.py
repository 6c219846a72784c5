"""The target model, with every foreign spelling already translated."""

from __future__ import annotations

import msgspec

from peagle_trt.spec.experts import ExpertsConfig
from peagle_trt.spec.rope import RopeConfig


class TargetConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decoder-only target of the Llama family.

    Attributes:
        architecture: Name the checkpoint gives itself, kept for messages only.
        hidden_size: Width of the residual stream.
        intermediate_size: Width of the SwiGLU.
        num_layers: Decoder layers.
        num_attention_heads: Query heads.
        num_key_value_heads: Key/value heads; divides `num_attention_heads`.
        head_dim: Width of a head; need not be `hidden_size / num_attention_heads`.
        vocab_size: Rows of the embedding and of the output layer.
        rms_norm_eps: Epsilon of every RMSNorm.
        rope: Rotary embedding.
        max_positions: Context length, in tokens.
        is_tied: The output layer is the embedding table.
        has_qkv_bias: q, k and v projections carry a bias.
        has_output_bias: The attention's output projection carries a bias.
        has_mlp_bias: gate, up and down projections carry a bias.
        has_qk_norm: Queries and keys are normalised per head before rotation (Qwen3).
        attention_windows: Tokens that each layer looks back at, the current one included, 0 for all of them; empty when
            every layer looks at all.
        has_sinks: Every query head has a learned logit that takes part in its softmax and adds nothing (gpt-oss).
        experts: The mixture of experts in place of each SwiGLU, or None; `intermediate_size` is then the expert's.
        bos_token_id: Token that starts a text, or None.
        eos_token_ids: Tokens that end a text.
        aux_layer_ids: Residual streams handed to the drafter; id k is the stream entering layer k
            (k = num_layers would be the last layer's output before the final norm). Ascending.
    """

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope: RopeConfig
    max_positions: int
    is_tied: bool = False
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_mlp_bias: bool = False
    has_qk_norm: bool = False
    attention_windows: tuple[int, ...] = ()
    has_sinks: bool = False
    experts: ExpertsConfig | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    aux_layer_ids: tuple[int, ...] = ()

    def attention_window(self, layer: int) -> int:
        """Tokens that a layer looks back at, the current one included; 0 for all."""
        return self.attention_windows[layer] if self.attention_windows else 0


def default_aux_layer_ids(num_layers: int) -> tuple[int, int, int]:
    """Residual streams an EAGLE-3 drafter reads when its checkpoint does not say.

    Source: vLLM 0.16+ `get_eagle3_aux_hidden_state_layers`: (2, n // 2, n - 3), counted as layer inputs.
    """
    return (2, num_layers // 2, num_layers - 3)
