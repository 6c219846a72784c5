"""Targets in Hugging Face's layout: every supported architecture, and every refusal."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from peagle_trt.errors import CheckpointError
from peagle_trt.readers import read_target
from peagle_trt.readers.llama_names import llama_name
from peagle_trt.spec.names import target_shapes
from tests.support.checkpoints import edit_config, edit_tensors
from tests.support.models import save_target

ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "llama_tied": ("LlamaForCausalLM", {"tie_word_embeddings": True}),
    "llama_biased": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3ForCausalLM", {}),
    "qwen3_biased": ("Qwen3ForCausalLM", {"attention_bias": True}),
}


@pytest.mark.parametrize(("architecture", "settings"), ARCHITECTURES.values(), ids=ARCHITECTURES.keys())
def test_every_weight_of_an_architecture_is_read(tmp_path: Path, architecture: str, settings: dict[str, Any]) -> None:
    model = save_target(tmp_path, architecture, **settings)
    target = read_target(tmp_path)
    assert {name: lazy.shape for name, lazy in target.weights.items()} == target_shapes(target.config)
    state = model.state_dict()
    for name in target.weights:
        foreign = llama_name(name) if name == "lm_head" else f"model.{llama_name(name)}"
        np.testing.assert_array_equal(target.weights.load(name), state[foreign].numpy())
    assert len(target.weights) == len({tensor.data_ptr() for tensor in state.values()})


def test_shards_are_read_through_their_index(llama_folder: Path, target_folder: Path) -> None:
    split_into_shards(target_folder)
    expected, found = read_target(llama_folder), read_target(target_folder)
    assert expected.weights.keys() == found.weights.keys()
    for name in expected.weights:
        np.testing.assert_array_equal(found.weights.load(name), expected.weights.load(name))


def split_into_shards(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    weight_map = {}
    for shard, part in (("model-1.safetensors", names[::2]), ("model-2.safetensors", names[1::2])):
        save_file({name: tensors[name] for name in part}, folder / shard)
        weight_map |= dict.fromkeys(part, shard)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_a_missing_shard_is_named(target_folder: Path) -> None:
    split_into_shards(target_folder)
    (target_folder / "model-2.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"lacks the shard `model-2\.safetensors`"):
        read_target(target_folder)


def test_an_index_that_names_an_absent_tensor_is_refused(target_folder: Path) -> None:
    split_into_shards(target_folder)
    path = target_folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["ghost.weight"] = "model-1.safetensors"
    path.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"names tensor `ghost\.weight`"):
        read_target(target_folder)


def test_an_index_that_points_outside_its_folder_is_refused(target_folder: Path) -> None:
    index = {"weight_map": {"a": "../elsewhere.safetensors"}}
    (target_folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="points outside its folder"):
        read_target(target_folder)


REFUSED_CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown_architecture": ({"architectures": ["MambaForCausalLM"]}, "`MambaForCausalLM`, which is not supported"),
    "no_architecture": ({"architectures": None}, "names nothing"),
    "activation": ({"hidden_act": "gelu"}, '`hidden_act` must be `silu` or `swish`; found `"gelu"`'),
    "quantized": (
        {"quantization_config": {"quant_method": "gptq"}},
        "`quantization_config.quant_method` must be `mxfp4`",
    ),
    "window": ({"sliding_window": 512}, "`sliding_window` must be null; found `512`"),
    "layer_types": ({"layer_types": ["sliding_attention"] * 6}, "`layer_types` must be `full_attention` throughout"),
    "text_number": ({"hidden_size": "64"}, '`hidden_size` must be a whole number from 1 to 16777216; found `"64"`'),
    "boolean_number": ({"hidden_size": True}, "`hidden_size` must be a whole number"),
    "missing_key": ({"rms_norm_eps": None}, "`rms_norm_eps` is missing"),
    "heads": ({"num_key_value_heads": 3}, "`num_key_value_heads` must be a divisor"),
    "rope_type": ({"rope_parameters": {"rope_type": "longrope"}}, "`rope_parameters.rope_type` is `longrope`"),
    "rope_key": (
        {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0}},
        "`rope_parameters.mscale` is not",
    ),
    "rope_theta": (
        {"rope_parameters": {"rope_theta": 5.0}, "rope_theta": 6.0},
        "must be equal to the outer `rope_theta`",
    ),
    "rope_part": (
        {"rope_parameters": {"partial_rotary_factor": 0.5}},
        "`rope_parameters.partial_rotary_factor` must be",
    ),
    "logit_scale": ({"logit_scale": 0.5}, "`logit_scale` must be `1`; found `0.5`"),
    "capped": ({"final_logit_softcapping": 30.0}, "`final_logit_softcapping` must be null; found `30.0`"),
    "odd_head": ({"head_dim": 15}, "`head_dim` must be even"),
    "eps_negative": ({"rms_norm_eps": -1}, "`rms_norm_eps` must be a number above 0 to 1; found `-1`"),
    "eps_zero": ({"rms_norm_eps": 0}, "`rms_norm_eps` must be a number above 0"),
    "eps_infinite": ({"rms_norm_eps": float("inf")}, "`rms_norm_eps` must be a number above 0"),
    "eps_long": ({"rms_norm_eps": 10**400}, r"found `10{79}\.\.\.`"),
    "theta_zero": ({"rope_parameters": {"rope_theta": 0}}, "`rope_parameters.rope_theta` must be a number above 1"),
    "theta_negative": ({"rope_theta": -1.0, "rope_parameters": None}, "`rope_theta` must be a number above 1"),
    "theta_nan": ({"rope_theta": float("nan"), "rope_parameters": None}, "`rope_theta` must be a number above 1"),
    "layers": ({"num_hidden_layers": 10**12}, "`num_hidden_layers` must be a whole number from 1 to 4096"),
    "positions": ({"max_position_embeddings": 10**30}, "`max_position_embeddings` must be a whole number from 1"),
    "bos": ({"bos_token_id": 300}, "`bos_token_id` must be a whole number from 0 to 299; found `300`"),
    "eos": ({"eos_token_id": [2, -1]}, "`eos_token_id` must be a list of whole numbers from 0 to 299"),
    "wrong_width": ({"intermediate_size": 128}, r"wrong shape: expected \[128, 64\], found \[96, 64\]"),
    "more_layers": (
        {"num_hidden_layers": 7},
        r"lacks 9 of 66 tensors, first `model.layers.6.input_layernorm.weight` \[64\]",
    ),
    "fewer_layers": ({"num_hidden_layers": 5}, "holds 9 tensor.s. that its configuration has no place for"),
    "tied": ({"tie_word_embeddings": True}, "`lm_head.weight` differs from `model.embed_tokens.weight`"),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED_CONFIGS.values(), ids=REFUSED_CONFIGS.keys())
def test_a_configuration_that_cannot_be_honoured_is_refused(
    target_folder: Path, changes: dict[str, Any], message: str
) -> None:
    edit_config(target_folder, **changes)
    with pytest.raises(CheckpointError, match=message):
        read_target(target_folder)


def test_a_window_of_mistral_is_every_layers(target_folder: Path) -> None:
    edit_config(target_folder, architectures=["MistralForCausalLM"])
    assert read_target(target_folder).config.attention_windows == ()
    edit_config(target_folder, sliding_window=4096)
    assert read_target(target_folder).config.attention_windows == (4096,) * 6


def test_a_window_of_qwen_counts_where_its_flag_says_so(tmp_path: Path) -> None:
    save_target(tmp_path, "Qwen2ForCausalLM")
    edit_config(tmp_path, sliding_window=40, use_sliding_window=False, layer_types=None, max_window_layers=4)
    assert read_target(tmp_path).config.attention_windows == ()
    edit_config(tmp_path, use_sliding_window=True)
    assert read_target(tmp_path).config.attention_windows == (0, 0, 0, 0, 40, 40)
    edit_config(tmp_path, layer_types=["sliding_attention", *["full_attention"] * 5])
    assert read_target(tmp_path).config.attention_windows == (40, 0, 0, 0, 0, 0)
    edit_config(tmp_path, use_sliding_window=False)
    with pytest.raises(CheckpointError, match="`layer_types` must be `full_attention` throughout"):
        read_target(tmp_path)


def test_a_tensor_of_integers_is_refused(target_folder: Path) -> None:
    edit_tensors(target_folder, model__norm__weight=np.ones(64, np.int64))
    with pytest.raises(
        CheckpointError, match=r"`model\.norm\.weight` has the wrong type: expected a floating type, found I64"
    ):
        read_target(target_folder)


def test_frequencies_may_be_left_out_and_an_equal_tied_head_too(tmp_path: Path) -> None:
    save_target(tmp_path, tie_word_embeddings=True)
    table = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    edit_tensors(
        tmp_path, lm_head__weight=table, model__layers__0__self_attn__rotary_emb__inv_freq=np.ones(8, np.float32)
    )
    assert read_target(tmp_path).config.is_tied


def test_end_tokens_of_both_files_count(target_folder: Path) -> None:
    (target_folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2]}))
    assert read_target(target_folder).config.eos_token_ids == (2, 7)


def test_pickled_weights_are_not_opened(target_folder: Path) -> None:
    (target_folder / "model.safetensors").rename(target_folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="pickled PyTorch weights"):
        read_target(target_folder)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"a": 1, "a": 2}', "[" * 100_000, '{"a":' * 100_000])
def test_a_broken_config_is_named(target_folder: Path, content: str) -> None:
    (target_folder / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"cannot read `.*config\.json`"):
        read_target(target_folder)


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        read_target(tmp_path / "nothing")


def test_the_chat_template_is_found_in_either_place(target_folder: Path) -> None:
    (target_folder / "tokenizer.json").write_text("{}")
    settings = {"chat_template": "from settings", "bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    (target_folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = read_target(target_folder).tokenizer
    assert tokenizer is not None
    assert (tokenizer.chat_template, tokenizer.bos_token, tokenizer.eos_token) == ("from settings", "<s>", "</s>")
    (target_folder / "chat_template.jinja").write_text("from file")
    assert read_target(target_folder).tokenizer.chat_template == "from file"  # type: ignore[union-attr]


def test_end_tokens_outside_the_vocabulary_are_named(target_folder: Path) -> None:
    (target_folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 300]}))
    with pytest.raises(CheckpointError, match=r"generation_config\.json`: `eos_token_id` must be a list"):
        read_target(target_folder)


@pytest.mark.parametrize("template", [5, {"default": "x"}, [{"name": "default", "template": 5}]])
def test_a_chat_template_that_is_no_text_is_refused(target_folder: Path, template: object) -> None:
    (target_folder / "tokenizer.json").write_text("{}")
    (target_folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    with pytest.raises(CheckpointError, match="`chat_template` must be a string"):
        read_target(target_folder)


FILES = ("config.json", "model.safetensors", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
@pytest.mark.parametrize("name", FILES)
def test_what_is_no_file_is_not_opened(target_folder: Path, name: str, make: Callable[[Path], None]) -> None:
    (target_folder / "tokenizer.json").write_text("{}")
    (target_folder / name).unlink(missing_ok=True)
    make(target_folder / name)
    with pytest.raises(CheckpointError, match=f"{name}` is a folder, a pipe or a device, not a file"):
        read_target(target_folder)


def test_a_device_is_not_opened(target_folder: Path) -> None:
    (target_folder / "config.json").unlink()
    (target_folder / "config.json").symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match="not a file"):
        read_target(target_folder)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("width", [np.float32, np.float16, np.float64])
def test_a_weight_that_is_no_number_is_named(target_folder: Path, value: float, width: type[np.generic]) -> None:
    weight = np.ones((64, 96), width)
    weight[3, 5] = value
    edit_tensors(target_folder, model__layers__2__mlp__down_proj__weight=weight)
    target = read_target(target_folder)
    message = r"`model\.layers\.2\.mlp\.down_proj\.weight` holds 1 value.* first at \[3, 5\]"
    with pytest.raises(CheckpointError, match=message):
        target.weights.load("layers.2.down_proj")
