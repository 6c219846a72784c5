"""Targets in Hugging Face's layout: config.json, safetensors, tokenizer.json."""

from __future__ import annotations

from pathlib import Path

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.architectures import find_architecture, read_heads, refuse_other_numbers
from peagle_trt.readers.checkpoint import TargetCheckpoint, TokenizerSource
from peagle_trt.readers.experts import read_experts
from peagle_trt.readers.foreign_file import read_foreign_text
from peagle_trt.readers.json_file import Fields, read_object
from peagle_trt.readers.quantized import read_quantization
from peagle_trt.readers.ranges import EPSILON, LAYERS, POSITIONS, SIZE, Range, token_ids
from peagle_trt.readers.rope import read_rope
from peagle_trt.readers.shards import read_folder_tensors
from peagle_trt.readers.target_weights import read_weights
from peagle_trt.readers.windows import read_windows
from peagle_trt.spec import TargetConfig


def read_huggingface_target(folder: Path) -> TargetCheckpoint:
    """Read a target's folder; no tensor is loaded.

    Raises:
        CheckpointError: The model is not supported, damaged or incomplete.
    """
    config = read_target_config(folder)
    fields = read_object(folder / "config.json")
    _, architecture = find_architecture(fields)
    quantization = read_quantization(folder, fields)
    weights = read_weights(folder, read_folder_tensors(folder), config, architecture, quantization)
    return TargetCheckpoint(path=folder, config=config, weights=weights, tokenizer=find_tokenizer(folder))


def read_target_config(folder: Path) -> TargetConfig:
    """Normalise a target's config.json, with the end tokens of generation_config.json.

    Raises:
        CheckpointError: The architecture or one of its settings is not supported.
    """
    config = read_object(folder / "config.json")
    name, architecture = find_architecture(config)
    refuse_other_numbers(config)
    _require_one_of(config, architecture.must_have)
    has_attention_bias = architecture.reads_bias_flags and config.flag(
        "attention_bias", default=architecture.default_attention_bias
    )
    hidden = config.integer("hidden_size", within=SIZE)
    heads = read_heads(config, hidden, architecture.default_head_dim)
    vocab_size = config.integer("vocab_size", within=SIZE)
    num_layers = config.integer("num_hidden_layers", within=LAYERS)
    experts = None if architecture.experts is None else read_experts(config, architecture.experts)
    return TargetConfig(
        architecture=name,
        hidden_size=hidden,
        intermediate_size=experts.intermediate_size if experts else config.integer("intermediate_size", within=SIZE),
        num_layers=num_layers,
        num_attention_heads=heads.num_query,
        num_key_value_heads=heads.num_key_value,
        head_dim=heads.width,
        vocab_size=vocab_size,
        rms_norm_eps=config.number("rms_norm_eps", within=EPSILON),
        rope=read_rope(config, default_theta=architecture.default_theta),
        max_positions=config.integer("max_position_embeddings", within=POSITIONS),
        is_tied=config.flag("tie_word_embeddings"),
        has_qkv_bias=has_attention_bias or architecture.always_has_qkv_bias,
        has_output_bias=has_attention_bias,
        has_mlp_bias=experts is None and architecture.reads_bias_flags and config.flag("mlp_bias"),
        has_qk_norm=architecture.has_qk_norm,
        attention_windows=read_windows(
            config, architecture.window_rule, num_layers, has_flag=architecture.has_sliding_window_flag
        ),
        has_sinks=architecture.has_sinks,
        experts=experts,
        bos_token_id=config.optional_integer("bos_token_id", within=token_ids(vocab_size)),
        eos_token_ids=_read_end_tokens(folder, config, token_ids(vocab_size)),
    )


def _require_one_of(config: Fields, keys: tuple[str, ...]) -> None:
    if keys and not any(config.has(key) for key in keys):
        names = " or ".join(f"`{key}`" for key in keys)
        raise CheckpointError(f"`{config.source}`: {names} is missing", hint="add the key, or fetch the file again")


def find_tokenizer(folder: Path) -> TokenizerSource | None:
    """The text side of a folder, or None where it has no tokenizer.json.

    Raises:
        CheckpointError: Its files are damaged.
    """
    path = folder / "tokenizer.json"
    if not path.exists():
        return None
    settings_path = folder / "tokenizer_config.json"
    settings = read_object(settings_path) if settings_path.exists() else Fields(source=settings_path, values={})
    return TokenizerSource(
        path=path,
        tokenizer_json=lambda: read_foreign_text(path),
        chat_template=_read_chat_template(folder, settings),
        bos_token=_token_text(settings, "bos_token"),
        eos_token=_token_text(settings, "eos_token"),
    )


def _read_end_tokens(folder: Path, config: Fields, within: Range) -> tuple[int, ...]:
    # A chat model ends its turn with tokens that only generation_config.json names.
    path = folder / "generation_config.json"
    extra = read_object(path).integers("eos_token_id", within=within) if path.exists() else ()
    return tuple(dict.fromkeys(config.integers("eos_token_id", within=within) + extra))


def _read_chat_template(folder: Path, settings: Fields) -> str | None:
    path = folder / "chat_template.jinja"
    if path.exists():
        return read_foreign_text(path)
    template = settings.values.get("chat_template")
    if isinstance(template, list):
        items = [item for item in template if isinstance(item, dict) and isinstance(item.get("name"), str)]
        named = {item["name"]: item.get("template") for item in items}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise settings.refuse("chat_template", "a string, or a list of templates with their names")
    return template


def _token_text(settings: Fields, key: str) -> str:
    value = settings.values.get(key)
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""
