"""Targets in one GGUF file, as llama.cpp writes them for the Llama architecture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.accounting import account_for
from peagle_trt.readers.architectures import HeadSizes
from peagle_trt.readers.checkpoint import TargetCheckpoint
from peagle_trt.readers.gguf_fields import GgufFields
from peagle_trt.readers.gguf_header import check_header
from peagle_trt.readers.gguf_tokenizer import read_gguf_tokenizer
from peagle_trt.readers.ranges import (
    EPSILON,
    HEAD_DIM,
    LAYERS,
    POSITIONS,
    ROPE_FACTOR,
    ROPE_THETA,
    SIZE,
    token_ids,
)
from peagle_trt.readers.tensors import LazyTensor, Weights
from peagle_trt.spec import RopeConfig, TargetConfig, TensorLocation, TensorSpec
from peagle_trt.spec.names import target_shapes

if TYPE_CHECKING:
    from gguf import GGUFReader, ReaderTensor

_TOP_LEVEL = {"embed_tokens": "token_embd.weight", "norm": "output_norm.weight", "lm_head": "output.weight"}
_IN_LAYER = {
    "input_norm": "attn_norm.weight",
    "post_attention_norm": "ffn_norm.weight",
    "o_proj": "attn_output.weight",
    "o_bias": "attn_output.bias",
    **{f"{part}_proj": f"attn_{part}.weight" for part in "qkv"},
    **{f"{part}_bias": f"attn_{part}.bias" for part in "qkv"},
    **{f"{part}_proj": f"ffn_{part}.weight" for part in ("gate", "up", "down")},
}
_REFUSED_KEYS = ("llama.attention.sliding_window", "llama.expert_count", "llama.rope.scaling.yarn_log_multiplier")


def read_gguf_target(path: Path) -> TargetCheckpoint:
    """Read a target's GGUF file; tensors are dequantized one at a time, when asked for.

    Raises:
        CheckpointError: The file is damaged, or holds another architecture.
    """
    reader = _open(path)
    fields = GgufFields(path=path, reader=reader)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    config = _read_config(fields, tensors)
    found = {name: _describe(path, tensor) for name, tensor in tensors.items()}
    used = account_for(path, found, expected_shapes=target_shapes(config), foreign_name=_foreign_name, ignorable=())
    weights = Weights({name: _lazy(name, spec, tensors[spec.name], config) for name, spec in used.items()})
    return TargetCheckpoint(path=path, config=config, weights=weights, tokenizer=read_gguf_tokenizer(fields))


def _open(path: Path) -> GGUFReader:
    import gguf

    check_header(path)
    try:
        return gguf.GGUFReader(path)
    except (ValueError, IndexError, KeyError, OverflowError, OSError) as error:
        # The library has no error of its own for a damaged file, only what numpy says about it.
        raise CheckpointError(
            f"`{path}` is truncated, or its header is damaged", hint="fetch the file again"
        ) from error


def _read_config(fields: GgufFields, tensors: dict[str, ReaderTensor]) -> TargetConfig:
    _refuse_unsupported(fields, tensors)
    hidden, vocab_size = fields.integer("llama.embedding_length", within=SIZE), fields.count("tokenizer.ggml.tokens")
    heads = _read_heads(fields, hidden)
    return TargetConfig(
        architecture="llama (GGUF)",
        hidden_size=hidden,
        intermediate_size=fields.integer("llama.feed_forward_length", within=SIZE),
        num_layers=fields.integer("llama.block_count", within=LAYERS),
        num_attention_heads=heads.num_query,
        num_key_value_heads=heads.num_key_value,
        head_dim=heads.width,
        vocab_size=vocab_size,
        rms_norm_eps=fields.number("llama.attention.layer_norm_rms_epsilon", within=EPSILON),
        rope=_read_rope(fields),
        max_positions=fields.integer("llama.context_length", within=POSITIONS),
        is_tied="output.weight" not in tensors,
        has_qkv_bias="blk.0.attn_q.bias" in tensors,
        has_output_bias="blk.0.attn_output.bias" in tensors,
        bos_token_id=fields.optional_integer("tokenizer.ggml.bos_token_id", within=token_ids(vocab_size)),
        eos_token_ids=tuple(
            dict.fromkeys(
                token
                for key in ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
                if (token := fields.optional_integer(key, within=token_ids(vocab_size))) is not None
            )
        ),
    )


def _refuse_unsupported(fields: GgufFields, tensors: dict[str, ReaderTensor]) -> None:
    architecture = fields.text("general.architecture")
    if architecture != "llama":
        raise CheckpointError(
            f"`{fields.path}`: `general.architecture` is `{architecture}`, which is not supported",
            hint="supported: llama",
        )
    for key in _REFUSED_KEYS:
        if fields.is_set(key):
            raise CheckpointError(f"`{fields.path}`: `{key}` is set, which is not supported")
    if "rope_freqs.weight" in tensors:
        raise CheckpointError(
            f"`{fields.path}`: rotary frequencies stored as factors (`rope_freqs.weight`) are not supported",
            hint="use the model's safetensors checkpoint, whose configuration names the rule",
        )


def _read_heads(fields: GgufFields, hidden_size: int) -> HeadSizes:
    num_query = fields.integer("llama.attention.head_count", within=SIZE)
    num_key_value = fields.integer("llama.attention.head_count_kv", num_query, within=SIZE)
    width = fields.integer("llama.attention.key_length", hidden_size // num_query, within=HEAD_DIM)
    if num_query % num_key_value:
        raise fields.refuse("llama.attention.head_count_kv", f"a divisor of {num_query} heads", num_key_value)
    rotated = fields.integer("llama.rope.dimension_count", width, within=HEAD_DIM)
    if rotated != width or width % 2:
        raise fields.refuse("llama.rope.dimension_count", f"the width of a head, {width}, and even", rotated)
    return HeadSizes(num_query=num_query, num_key_value=num_key_value, width=width)


def _read_rope(fields: GgufFields) -> RopeConfig:
    theta = fields.number("llama.rope.freq_base", 10000.0, within=ROPE_THETA)
    kind = fields.text("llama.rope.scaling.type", "none")
    if kind == "none":
        return RopeConfig(theta=theta)
    if kind == "linear":
        factor = fields.number("llama.rope.scaling.factor", within=ROPE_FACTOR)
        return RopeConfig(theta=theta, scaling="linear", factor=factor)
    raise CheckpointError(
        f"`{fields.path}`: `llama.rope.scaling.type` is `{kind}`, which is not supported in GGUF",
        hint="supported: none, linear; use the model's safetensors checkpoint",
    )


def _foreign_name(name: str) -> str:
    if not name.startswith("layers."):
        return _TOP_LEVEL[name]
    _, layer, part = name.split(".")
    return f"blk.{layer}.{_IN_LAYER[part]}"


def _describe(path: Path, tensor: ReaderTensor) -> TensorSpec:
    location = TensorLocation(path=path, offset_bytes=int(tensor.data_offset), length_bytes=int(tensor.n_bytes))
    # GGUF lists dimensions innermost first.
    shape = tuple(int(size) for size in reversed(tensor.shape))
    return TensorSpec(name=tensor.name, dtype=tensor.tensor_type.name, shape=shape, location=location)


def _lazy(name: str, spec: TensorSpec, tensor: ReaderTensor, config: TargetConfig) -> LazyTensor:
    part = name.rpartition(".")[2]
    if part in ("q_proj", "q_bias"):
        return LazyTensor(spec=spec, load=lambda: _unpermute(_dequantize(tensor, spec), config.num_attention_heads))
    if part in ("k_proj", "k_bias"):
        return LazyTensor(spec=spec, load=lambda: _unpermute(_dequantize(tensor, spec), config.num_key_value_heads))
    return LazyTensor(spec=spec, load=lambda: _dequantize(tensor, spec))


def _dequantize(tensor: ReaderTensor, spec: TensorSpec) -> NDArray[np.float32]:
    from gguf import quants

    try:
        # A damaged scale overflows here; what is no number is refused by name, by whoever asked for it.
        with np.errstate(all="ignore"):
            values = quants.dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        raise CheckpointError(f"tensor `{spec.name}` has the unsupported GGUF type {spec.dtype}") from error
    return np.ascontiguousarray(values, np.float32).reshape(spec.shape)


def _unpermute(rows: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Undo llama.cpp's interleaving of a head's two halves.

    Args:
        rows: Rows of a q or k projection (or its bias) as stored, [heads * D, ...].
        num_heads: Heads the rows belong to.

    Returns:
        The same rows in half-split order, as Hugging Face and our rotary embedding expect them.

    Source: llama.cpp `convert_hf_to_gguf.py`, `LlamaModel.permute`, inverted.
    """
    head_dim = rows.shape[0] // num_heads
    pairs = rows.reshape(num_heads, head_dim // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)
