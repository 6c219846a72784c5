"""Our names of tensors: what readers produce and graphs consume.

Target:   embed_tokens [V,H] · norm [H] · lm_head [V,H] (absent when tied) · per layer `layers.{i}.`:
          input_norm [H] · post_attention_norm [H] · q_proj [Hq*D,H] · k_proj, v_proj [Hkv*D,H] · o_proj [H,Hq*D]
          gate_proj, up_proj [I,H] · down_proj [H,I] · q_norm, k_norm [D] · {q,k,v,o,gate,up,down}_bias
          sinks [Hq] (has_sinks); with experts, in place of gate, up and down: router [E,H] · router_bias [E] ·
          experts_gate_up_proj [E,2I,H] · experts_gate_up_bias [E,2I] · experts_down_proj [E,H,I] · experts_down_bias
          [E,H]. Rows of gate and up take turns, gate first: gpt-oss stores them so, and its packed bytes need no
          reordering; ONNX Runtime's kernel takes no other order.
Drafter:  the same per layer, where layer 0's q/k/v read 2H; plus layers.0.hidden_norm [H] · fc [H, A*Ht] ·
          mask_hidden [A*Ht] · input_norm [A*Ht] (norm_before_fc) · fc_norm.{a} [Ht] · d2t [Vd] int64 offsets ·
          embed_tokens [V,H] and lm_head [Vd,H] where the head owns them
"""

from __future__ import annotations

from peagle_trt.spec.drafter import DrafterConfig
from peagle_trt.spec.experts import ExpertsConfig
from peagle_trt.spec.target import TargetConfig


def target_shapes(config: TargetConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor a target must have, by our name."""
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens": (config.vocab_size, hidden), "norm": (hidden,)}
    if not config.is_tied:
        shapes["lm_head"] = (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        prefix = f"layers.{layer}."
        shapes |= _layer_shapes(prefix, config, hidden, config.has_qkv_bias)
        if config.has_sinks:
            shapes[f"{prefix}sinks"] = (config.num_attention_heads,)
        if config.experts is not None:
            shapes |= {prefix + name: shape for name, shape in expert_shapes(config.experts, hidden).items()}
    return shapes


def expert_shapes(experts: ExpertsConfig, hidden_size: int) -> dict[str, tuple[int, ...]]:
    """Tensors of one layer's experts and their router, by name within the layer."""
    count, width = experts.num_experts, experts.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "router": (count, hidden_size),
        "experts_gate_up_proj": (count, 2 * width, hidden_size),
        "experts_down_proj": (count, hidden_size, width),
    }
    if experts.has_router_bias:
        shapes["router_bias"] = (count,)
    if experts.has_expert_bias:
        shapes |= {"experts_gate_up_bias": (count, 2 * width), "experts_down_bias": (count, hidden_size)}
    return shapes


def drafter_shapes(config: DrafterConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor a drafter must have, by our name."""
    hidden, fused = config.hidden_size, len(config.aux_layer_ids) * config.target_hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        "fc": (hidden, fused),
        "mask_hidden": (fused,),
        "norm": (hidden,),
        "layers.0.hidden_norm": (hidden,),
    }
    if config.norm_before_fc:
        shapes["input_norm"] = (fused,)
    if config.has_fc_norm:
        shapes |= {f"fc_norm.{index}": (config.target_hidden_size,) for index in range(len(config.aux_layer_ids))}
    if config.has_own_embeddings:
        shapes["embed_tokens"] = (config.vocab_size, hidden)
    if config.has_own_lm_head:
        shapes["lm_head"] = (config.draft_vocab_size, hidden)
    if config.has_vocabulary_map:
        shapes["d2t"] = (config.draft_vocab_size,)
    for layer in range(config.num_layers):
        # Layer 0 reads [embedding | hidden], 2H wide; the others read H.
        width = 2 * hidden if layer == 0 else hidden
        shapes |= _layer_shapes(f"layers.{layer}.", config, width, config.has_attention_bias)
    return shapes


def _layer_shapes(
    prefix: str, config: TargetConfig | DrafterConfig, attention_width: int, has_bias: bool
) -> dict[str, tuple[int, ...]]:
    hidden, intermediate = config.hidden_size, config.intermediate_size
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "input_norm": (hidden,),
        "post_attention_norm": (hidden,),
        "q_proj": (queries, attention_width),
        "k_proj": (keys, attention_width),
        "v_proj": (keys, attention_width),
        "o_proj": (hidden, queries),
    }
    if isinstance(config, DrafterConfig) or config.experts is None:
        shapes |= {
            "gate_proj": (intermediate, hidden),
            "up_proj": (intermediate, hidden),
            "down_proj": (hidden, intermediate),
        }
    if has_bias:
        shapes |= {"q_bias": (queries,), "k_bias": (keys,), "v_bias": (keys,)}
    if config.has_output_bias:
        shapes["o_bias"] = (hidden,)
    if config.has_mlp_bias:
        shapes |= {"gate_bias": (intermediate,), "up_bias": (intermediate,), "down_bias": (hidden,)}
    if config.has_qk_norm:
        shapes |= {"q_norm": (config.head_dim,), "k_norm": (config.head_dim,)}
    return {prefix + name: shape for name, shape in shapes.items()}
