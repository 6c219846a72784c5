"""Targets of the Llama family: what sets each architecture apart."""

from __future__ import annotations

from dataclasses import dataclass

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.experts import ExpertsKind
from peagle_trt.readers.json_file import Fields
from peagle_trt.readers.ranges import HEAD_DIM, SIZE
from peagle_trt.readers.rope import DEFAULT_THETA
from peagle_trt.readers.windows import WindowRule, refuse_windows

# Settings that change the numbers, with the values under which they do not; null and absent never do.
# Source: vLLM `llama.py`, `llama_eagle3.py` (`logit_scale`); transformers' Granite, Cohere, Gemma, DBRX (the rest).
_NEUTRAL_VALUES: dict[str, tuple[object, ...]] = {
    "hidden_act": ("silu", "swish"),
    "hidden_activation": ("silu", "swish"),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "embedding_multiplier": (1,),
    "residual_multiplier": (1,),
    "attention_multiplier": (),
    "query_pre_attn_scalar": (),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "clip_qkv": (),
    "attention_chunk_size": (),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """How one architecture departs from Llama.

    Attributes:
        reads_bias_flags: `attention_bias` and `mlp_bias` of the configuration decide; otherwise there are none.
        always_has_qkv_bias: q, k and v carry a bias, whatever the configuration says.
        has_qk_norm: Queries and keys are normalised per head.
        has_sinks: Every query head has a sink.
        window_rule: Which layers a window applies to.
        has_sliding_window_flag: A window only counts while `use_sliding_window` is true; otherwise wherever it is set.
        default_head_dim: Width of a head where the configuration is silent, or None for hidden size over heads.
        default_attention_bias: `attention_bias` where the configuration is silent.
        default_theta: Base of the rotary wavelengths where the configuration is silent.
        must_have: Keys of which one must be set, for the architecture's own default is not ours.
        experts: Which experts its layers have, or None for none.
        router_name: What a layer calls its router, where it has experts.

    Source: transformers 5 `models/{llama,mistral,qwen2,qwen3,qwen3_moe,gpt_oss}/configuration_*.py`, `modeling_*.py`.
    """

    reads_bias_flags: bool = False
    always_has_qkv_bias: bool = False
    has_qk_norm: bool = False
    has_sinks: bool = False
    window_rule: WindowRule = "none"
    has_sliding_window_flag: bool = False
    default_head_dim: int | None = None
    default_attention_bias: bool = False
    default_theta: float = DEFAULT_THETA
    must_have: tuple[str, ...] = ()
    experts: ExpertsKind | None = None
    router_name: str = ""


ARCHITECTURES = {
    "LlamaForCausalLM": Architecture(reads_bias_flags=True),
    "MistralForCausalLM": Architecture(window_rule="all"),
    "Qwen2ForCausalLM": Architecture(always_has_qkv_bias=True, window_rule="upper", has_sliding_window_flag=True),
    "Qwen3ForCausalLM": Architecture(
        reads_bias_flags=True,
        has_qk_norm=True,
        window_rule="upper",
        has_sliding_window_flag=True,
        default_head_dim=128,
    ),
    "Qwen3MoeForCausalLM": Architecture(
        reads_bias_flags=True,
        has_qk_norm=True,
        window_rule="all",
        has_sliding_window_flag=True,
        experts="qwen3_moe",
        router_name="gate",
    ),
    "GptOssForCausalLM": Architecture(
        reads_bias_flags=True,
        has_sinks=True,
        window_rule="by_type",
        default_head_dim=64,
        default_attention_bias=True,
        default_theta=150000.0,
        must_have=("rope_parameters", "rope_scaling"),
        experts="gpt_oss",
        router_name="router",
    ),
}


def find_architecture(config: Fields) -> tuple[str, Architecture]:
    """Name and rules of a configuration's architecture.

    Raises:
        CheckpointError: It is not one of the known ones.
    """
    names = config.texts("architectures")
    if len(names) != 1 or names[0] not in ARCHITECTURES:
        found = ", ".join(f"`{name}`" for name in names) or "nothing"
        raise CheckpointError(
            f"`{config.source}`: `architectures` names {found}, which is not supported as a target",
            hint=f"supported: {', '.join(ARCHITECTURES)}",
        )
    return names[0], ARCHITECTURES[names[0]]


def refuse_unsupported_parts(config: Fields, *, has_sliding_window_flag: bool) -> None:
    """Refuse settings of a head that would change the numbers and that no graph of ours expresses.

    Args:
        config: The configuration.
        has_sliding_window_flag: A window only counts while `use_sliding_window` is true.

    Raises:
        CheckpointError: Sliding windows, another activation, scaled or capped logits.
    """
    refuse_other_numbers(config)
    refuse_windows(config, has_flag=has_sliding_window_flag)


def refuse_other_numbers(config: Fields) -> None:
    """Refuse settings of a target or a head that scale or cap numbers, or name another activation.

    Raises:
        CheckpointError: There is one.
    """
    for key, neutral in _NEUTRAL_VALUES.items():
        if config.has(key) and config.values[key] not in neutral:
            raise config.refuse(key, " or ".join(f"`{value}`" for value in neutral) or "null")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSizes:
    """An attention's heads.

    Attributes:
        num_query: Query heads.
        num_key_value: Key/value heads.
        width: Width of a head.
    """

    num_query: int
    num_key_value: int
    width: int


def read_heads(config: Fields, hidden_size: int, default_width: int | None = None) -> HeadSizes:
    """The heads of a target or a drafter.

    Raises:
        CheckpointError: They do not go together.
    """
    num_query = config.integer("num_attention_heads", within=SIZE)
    num_key_value = config.integer("num_key_value_heads", num_query, within=SIZE)
    width = config.integer("head_dim", default_width or hidden_size // num_query, within=HEAD_DIM)
    if num_query % num_key_value:
        raise config.refuse("num_key_value_heads", f"a divisor of `num_attention_heads`, {num_query}")
    if width % 2:
        raise config.refuse("head_dim", f"even, for rotation takes pairs (taken: {width})")
    return HeadSizes(num_query=num_query, num_key_value=num_key_value, width=width)
