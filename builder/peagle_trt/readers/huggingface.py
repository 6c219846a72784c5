"""Targets in Hugging Face's layout: config.json, safetensors, tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.accounting import INVERSE_FREQUENCIES, Ignorable, account_for
from peagle_trt.readers.architectures import find_architecture, read_heads, refuse_unsupported_parts
from peagle_trt.readers.checkpoint import TargetCheckpoint, TokenizerSource
from peagle_trt.readers.foreign_file import read_foreign_text
from peagle_trt.readers.json_file import Fields, read_object
from peagle_trt.readers.llama_names import llama_name
from peagle_trt.readers.ranges import EPSILON, LAYERS, POSITIONS, SIZE, Range, token_ids
from peagle_trt.readers.rope import read_rope
from peagle_trt.readers.safetensors_file import lazy_tensor, map_bytes
from peagle_trt.readers.shards import read_folder_tensors
from peagle_trt.readers.tensors import Weights
from peagle_trt.spec import TargetConfig, TensorSpec
from peagle_trt.spec.names import target_shapes

_TIED_HEAD = Ignorable(
    pattern=r"lm_head\.weight", reason="a copy of the embedding table, which the output layer is tied to"
)


def read_huggingface_target(folder: Path) -> TargetCheckpoint:
    """Read a target's folder; no tensor is loaded.

    Raises:
        CheckpointError: The model is not supported, damaged or incomplete.
    """
    config = read_target_config(folder)
    found = read_folder_tensors(folder)
    ignorable: tuple[Ignorable, ...] = (INVERSE_FREQUENCIES,)
    if config.is_tied:
        ignorable += (_TIED_HEAD,)
        _refuse_untied_copy(folder, found)
    used = account_for(
        folder, found, expected_shapes=target_shapes(config), foreign_name=_foreign_name, ignorable=ignorable
    )
    weights = Weights({name: lazy_tensor(spec) for name, spec in used.items()})
    return TargetCheckpoint(path=folder, config=config, weights=weights, tokenizer=find_tokenizer(folder))


def read_target_config(folder: Path) -> TargetConfig:
    """Normalise a target's config.json, with the end tokens of generation_config.json.

    Raises:
        CheckpointError: The architecture or one of its settings is not supported.
    """
    config = read_object(folder / "config.json")
    name, architecture = find_architecture(config)
    refuse_unsupported_parts(config, has_sliding_window_flag=architecture.has_sliding_window_flag)
    has_attention_bias = architecture.reads_bias_flags and config.flag("attention_bias")
    hidden = config.integer("hidden_size", within=SIZE)
    heads = read_heads(config, hidden, architecture.default_head_dim)
    vocab_size = config.integer("vocab_size", within=SIZE)
    return TargetConfig(
        architecture=name,
        hidden_size=hidden,
        intermediate_size=config.integer("intermediate_size", within=SIZE),
        num_layers=config.integer("num_hidden_layers", within=LAYERS),
        num_attention_heads=heads.num_query,
        num_key_value_heads=heads.num_key_value,
        head_dim=heads.width,
        vocab_size=vocab_size,
        rms_norm_eps=config.number("rms_norm_eps", within=EPSILON),
        rope=read_rope(config),
        max_positions=config.integer("max_position_embeddings", within=POSITIONS),
        is_tied=config.flag("tie_word_embeddings"),
        has_qkv_bias=has_attention_bias or architecture.always_has_qkv_bias,
        has_output_bias=has_attention_bias,
        has_mlp_bias=architecture.reads_bias_flags and config.flag("mlp_bias"),
        has_qk_norm=architecture.has_qk_norm,
        bos_token_id=config.optional_integer("bos_token_id", within=token_ids(vocab_size)),
        eos_token_ids=_read_end_tokens(folder, config, token_ids(vocab_size)),
    )


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


def _foreign_name(name: str) -> str:
    return llama_name(name) if name == "lm_head" else f"model.{llama_name(name)}"


def _read_end_tokens(folder: Path, config: Fields, within: Range) -> tuple[int, ...]:
    # A chat model ends its turn with tokens that only generation_config.json names.
    path = folder / "generation_config.json"
    extra = read_object(path).integers("eos_token_id", within=within) if path.exists() else ()
    return tuple(dict.fromkeys(config.integers("eos_token_id", within=within) + extra))


def _refuse_untied_copy(folder: Path, found: Mapping[str, TensorSpec]) -> None:
    head, table = found.get("lm_head.weight"), found.get("model.embed_tokens.weight")
    if head is None or table is None:
        return
    if head.dtype != table.dtype or head.shape != table.shape or not np.array_equal(map_bytes(head), map_bytes(table)):
        raise CheckpointError(
            f"`{folder}`: `tie_word_embeddings` is true, but `lm_head.weight` differs from `model.embed_tokens.weight`",
            hint="set `tie_word_embeddings` to false in config.json if the output layer is a layer of its own",
        )


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
