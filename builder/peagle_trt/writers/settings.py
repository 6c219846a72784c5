"""Settings of a head's layers, as every configuration of the Llama family spells them."""

from __future__ import annotations

from peagle_trt.spec import DrafterConfig, RopeConfig, TargetConfig
from peagle_trt.writers.spelled import cannot_hold

_TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}


def layer_settings(config: DrafterConfig, stored_type: str) -> dict[str, object]:
    """Sizes, epsilon, biases and activation; neither rotation nor windows.

    Args:
        config: The head.
        stored_type: Type of its weights, as safetensors spells it.
    """
    return {
        "model_type": "qwen3" if config.has_qk_norm else "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_positions,
        "hidden_act": "silu",
        "attention_bias": config.has_attention_bias,
        "mlp_bias": config.has_mlp_bias,
        "tie_word_embeddings": False,
        "dtype": _TYPES[stored_type],
    }


def text_settings(target: TargetConfig | None) -> dict[str, object]:
    """Tokens that start and end texts, where the target is known."""
    if target is None:
        return {}
    ends = list(target.eos_token_ids)
    return {"bos_token_id": target.bos_token_id, "eos_token_id": ends[0] if len(ends) == 1 else ends or None}


def older_rope(rope: RopeConfig) -> dict[str, object]:
    """`rope_theta` and `rope_scaling`, which every engine reads."""
    return {"rope_theta": rope.theta, "rope_scaling": _scaling(rope) or None}


def newer_rope(rope: RopeConfig) -> dict[str, object]:
    """`rope_parameters`, as transformers 5 writes it."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": rope.theta} | _scaling(rope)}


def window_settings(config: DrafterConfig, dialect: str) -> dict[str, object]:
    """Which layers look back how far.

    Raises:
        CheckpointError: Layers have windows of different widths, for which there is one key only.
    """
    widths = sorted({width for width in config.attention_windows if width})
    if len(widths) > 1:
        raise cannot_hold(dialect, f"windows of {widths[0]} and {widths[1]} tokens", "it has one `sliding_window`")
    if not widths:
        return {}
    kinds = ["sliding_attention" if width else "full_attention" for width in config.attention_windows]
    return {"layer_types": kinds, "sliding_window": widths[0], "use_sliding_window": True}


def mixed_window_notes(config: DrafterConfig) -> tuple[str, ...]:
    """What vLLM 0.32 answers to a head some of whose layers have a window, as measured on its CPU build."""
    if len(set(config.attention_windows)) < 2:
        return ()
    return ("vLLM 0.32 refuses a head with both windowed and full layers: its caches must be of one kind",)


def refuse_lone_biases(config: DrafterConfig, dialect: str) -> None:
    """Refuse biases that the one flag of a configuration cannot tell apart.

    Raises:
        CheckpointError: Attention outputs have a bias, but queries, keys and values have none; or layers with head
            norms, whose feed-forward blocks have none anywhere, have biases there.
    """
    if config.has_output_bias and not config.has_attention_bias:
        raise cannot_hold(dialect, "a bias of the attention's output alone", "`attention_bias` means all four")
    if config.has_mlp_bias and config.has_qk_norm:
        raise cannot_hold(dialect, "biases of the feed-forward block beside head norms", "Qwen3's layers have none")


def _scaling(rope: RopeConfig) -> dict[str, object]:
    match rope.scaling:
        case "none":
            return {}
        case "linear":
            return {"rope_type": "linear", "factor": rope.factor}
        case "llama3":
            return {
                "rope_type": "llama3",
                "factor": rope.factor,
                "low_freq_factor": rope.low_freq_factor,
                "high_freq_factor": rope.high_freq_factor,
                "original_max_position_embeddings": rope.original_max_positions,
            }
    factor = {} if rope.attention_factor is None else {"attention_factor": rope.attention_factor}
    return {
        "rope_type": "yarn",
        "factor": rope.factor,
        "original_max_position_embeddings": rope.original_max_positions,
        "beta_fast": rope.beta_fast,
        "beta_slow": rope.beta_slow,
        "truncate": rope.truncates_ramp,
        **factor,
    }
