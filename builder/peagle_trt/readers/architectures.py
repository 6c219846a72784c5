"""Targets of the Llama family: what sets each architecture apart."""

from __future__ import annotations

from dataclasses import dataclass

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.json_file import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """How one architecture departs from Llama.

    Attributes:
        reads_bias_flags: `attention_bias` and `mlp_bias` of the configuration decide; otherwise there are none.
        always_has_qkv_bias: q, k and v carry a bias, whatever the configuration says.
        has_qk_norm: Queries and keys are normalised per head.
        has_sliding_window_flag: A window only counts while `use_sliding_window` is true; otherwise wherever it is set.
        default_head_dim: Width of a head where the configuration is silent, or None for hidden size over heads.

    Source: transformers 5 `models/{llama,mistral,qwen2,qwen3}/configuration_*.py` and `modeling_*.py`.
    """

    reads_bias_flags: bool = False
    always_has_qkv_bias: bool = False
    has_qk_norm: bool = False
    has_sliding_window_flag: bool = False
    default_head_dim: int | None = None


ARCHITECTURES = {
    "LlamaForCausalLM": Architecture(reads_bias_flags=True),
    "MistralForCausalLM": Architecture(),
    "Qwen2ForCausalLM": Architecture(always_has_qkv_bias=True, has_sliding_window_flag=True),
    "Qwen3ForCausalLM": Architecture(
        reads_bias_flags=True, has_qk_norm=True, has_sliding_window_flag=True, default_head_dim=128
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


def refuse_unsupported_parts(config: Fields, architecture: Architecture) -> None:
    """Refuse settings that would change the numbers and that no graph of ours expresses.

    Raises:
        CheckpointError: Sliding windows, another activation, or weights that are already quantized.
    """
    is_windowed = not architecture.has_sliding_window_flag or config.flag("use_sliding_window")
    if config.has("sliding_window") and is_windowed:
        raise config.refuse("sliding_window", "null", hint="sliding-window attention is not supported")
    refuse_layer_types(config)
    if config.text("hidden_act", "silu") != "silu":
        raise config.refuse("hidden_act", "`silu`")
    if config.has("quantization_config"):
        raise CheckpointError(
            f"`{config.source}`: the weights are already quantized (`quantization_config`)",
            hint="use the checkpoint in F32, F16 or BF16",
        )


def refuse_layer_types(config: Fields) -> None:
    """Refuse layers that do not attend to everything before them.

    Raises:
        CheckpointError: A layer slides, chunks or recurs.
    """
    others = sorted({kind for kind in config.texts("layer_types") if kind != "full_attention"})
    if others:
        raise config.refuse("layer_types", "`full_attention` throughout", hint=f"`{others[0]}` is not supported")
