"""Writes a target as a GGUF file in float32, without its tokenizer: for engines that are asked with token ids.

Only what llama.cpp's "llama" architecture computes is written; anything else is refused.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.target import read_target
from peagle_trt.spec import TargetConfig

_TOP_LEVEL = {"embed_tokens": "token_embd.weight", "norm": "output_norm.weight", "lm_head": "output.weight"}
_IN_LAYER = {
    "input_norm": "attn_norm.weight",
    "post_attention_norm": "ffn_norm.weight",
    "q_proj": "attn_q.weight",
    "k_proj": "attn_k.weight",
    "v_proj": "attn_v.weight",
    "o_proj": "attn_output.weight",
    "gate_proj": "ffn_gate.weight",
    "up_proj": "ffn_up.weight",
    "down_proj": "ffn_down.weight",
}


def write_gguf(target_path: Path, output_path: Path) -> None:
    """Write a Llama checkpoint as one GGUF file.

    Args:
        target_path: Folder of the checkpoint.
        output_path: The file; its folder is made.

    Raises:
        CheckpointError: It is not a plain Llama model.

    Source: llama.cpp's `gguf-py` constants; `LlamaModel.permute` of its converter for the order of q's and k's rows.
    """
    import gguf

    checkpoint = read_target(target_path)
    config = checkpoint.config
    _refuse_others(target_path, config)
    output_path.parent.mkdir(parents=True, exist_ok=True)
    # Renamed last: what is interrupted must not look finished.
    unfinished = output_path.with_suffix(".part")
    writer = gguf.GGUFWriter(unfinished, "llama")
    _write_fields(writer, config)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name in checkpoint.weights:
        values = np.ascontiguousarray(checkpoint.weights.load(name), np.float32)
        part = name.rpartition(".")[2]
        writer.add_tensor(_gguf_name(name), interleave(values, heads[part]) if part in heads else values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.replace(output_path)


def interleave(rows: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Put the halves of every head's rows side by side, as llama.cpp rotates them.

    Args:
        rows: Of a q or k projection, [heads * D, H].
        num_heads: Heads.
    """
    halves = rows.reshape(num_heads, 2, -1, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def _gguf_name(name: str) -> str:
    match = re.fullmatch(r"layers\.(\d+)\.(\w+)", name)
    return f"blk.{match[1]}.{_IN_LAYER[match[2]]}" if match else _TOP_LEVEL[name]


def _refuse_others(path: Path, config: TargetConfig) -> None:
    is_plain = not (
        config.has_qkv_bias or config.has_output_bias or config.has_mlp_bias or config.has_qk_norm or config.has_sinks
    )
    if not is_plain or config.experts is not None or config.attention_windows or config.rope.scaling != "none":
        raise CheckpointError(
            f"`{path}` (`{config.architecture}`) is no plain Llama model, and only such are written as GGUF",
            hint="convert it with llama.cpp's own converter and give the file with --gguf",
        )


def _write_fields(writer: Any, config: TargetConfig) -> None:
    import gguf

    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope.theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    # llama.cpp then wants no words, and knows ids alone.
    writer.add_tokenizer_model("no_vocab")
