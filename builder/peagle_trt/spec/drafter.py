"""The drafter, with every foreign spelling already translated."""

from __future__ import annotations

from typing import Literal

import msgspec

from peagle_trt.spec.rope import RopeConfig

NO_MASK_TOKEN = -1
"""`mask_token_id` of a head that has no masked slots."""

Method = Literal["p-eagle", "eagle3"]
"""How a head drafts: all slots in one pass, or one token a pass."""

AuxNumbering = Literal["inputs", "outputs", "not said"]
"""How a file numbers the target's layers: k is the stream entering layer k, or the one leaving it; or it names none."""


class DrafterConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An EAGLE-3 head; a parallel one (P-EAGLE) has one learned hidden state and one token for every masked slot.

    Attributes:
        dialect: Which spelling the checkpoint used, kept for messages only.
        hidden_size: Width of the drafter's residual stream.
        target_hidden_size: Width of one auxiliary hidden state of the target.
        intermediate_size: Width of the SwiGLU.
        num_layers: Layers, the fusion layer included.
        num_attention_heads: Query heads.
        num_key_value_heads: Key/value heads.
        head_dim: Width of a head.
        vocab_size: Vocabulary of the target; rows of the embedding table.
        draft_vocab_size: Rows of the drafter's output layer.
        rms_norm_eps: Epsilon of every RMSNorm.
        rope: Rotary embedding; may differ from the target's.
        max_positions: Context length the head was made for, in tokens.
        mask_token_id: Token of every masked slot; `NO_MASK_TOKEN` for a head that is not parallel.
        aux_layer_ids: Target residual streams that `fc` reads, layer inputs, ascending.
        aux_numbering: How the checkpoint numbered them, kept for messages only.
        is_parallel: One pass fills all slots (P-EAGLE); otherwise a pass drafts one token (plain EAGLE-3).
        norm_before_residual: The fusion layer's residual is the normalised hidden state instead of the raw one.
        norm_before_fc: One RMSNorm over the concatenated auxiliary states before `fc`.
        has_fc_norm: One RMSNorm for each auxiliary state before `fc` (EAGLE-3.1).
        norm_output: The state that a sequential head hands to its next pass is the normalised one (EAGLE-3.1); means
            nothing to a parallel head, which has one pass.
        has_attention_bias: q, k and v projections carry a bias.
        has_output_bias: The attention's output projection carries a bias.
        has_mlp_bias: gate, up and down projections carry a bias.
        has_qk_norm: Queries and keys are normalised per head before rotation.
        attention_windows: Tokens that each layer looks back at, the current one included, 0 for all of them; empty when
            every layer looks at all.
        has_own_embeddings: The checkpoint carries an embedding table; otherwise the target's is used.
        has_own_lm_head: The checkpoint carries an output layer; otherwise rows of the target's are used.
        has_vocabulary_map: The checkpoint carries `d2t`; otherwise draft ids are target ids.
        num_depths: Slots the head was trained to fill in one pass, or passes it was trained to take in a row, or None
            when the checkpoint does not say.

    Source: vLLM 0.32 `llama_eagle3.py`; the P-EAGLE paper (arXiv 2602.01469, section 2).
    """

    dialect: str
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    rms_norm_eps: float
    rope: RopeConfig
    max_positions: int
    mask_token_id: int
    aux_layer_ids: tuple[int, ...]
    aux_numbering: AuxNumbering = "inputs"
    is_parallel: bool = True
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    has_fc_norm: bool = False
    norm_output: bool = False
    has_attention_bias: bool = False
    has_output_bias: bool = False
    has_mlp_bias: bool = False
    has_qk_norm: bool = False
    attention_windows: tuple[int, ...] = ()
    has_own_embeddings: bool = False
    has_own_lm_head: bool = False
    has_vocabulary_map: bool = False
    num_depths: int | None = None

    @property
    def method(self) -> Method:
        """How the head drafts."""
        return "p-eagle" if self.is_parallel else "eagle3"

    def attention_window(self, layer: int) -> int:
        """Tokens that a layer looks back at, the current one included; 0 for all."""
        return self.attention_windows[layer] if self.attention_windows else 0
