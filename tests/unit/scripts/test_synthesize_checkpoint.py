"""Checkpoints of published shapes that take no disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from tokenizers import Tokenizer

from peagle_trt.errors import UsageError
from peagle_trt.readers import read_drafter
from peagle_trt.readers.safetensors_file import load_tensor
from peagle_trt.readers.shards import read_folder_tensors
from scripts.synthesize_checkpoint import (
    Tensor,
    cut_shards,
    published_models,
    read_published,
    shorten,
    target_tensors,
    write_drafter,
    write_file,
    write_target,
)
from tests.support.shrunk_models import shrink

# Published: `total_size` of each index, how many tensors it lists, and in how many files.
PUBLISHED_SIZES = {
    "gpt-oss-120b": (65_248_815_744, 687, 15),
    "gpt-oss-20b": (13_761_264_768, 459, 3),
    "qwen3-coder-30b-a3b": (61_064_245_248, 18_867, 16),
}


def test_every_published_model_is_covered() -> None:
    assert published_models() == sorted(PUBLISHED_SIZES)


@pytest.mark.parametrize("model", PUBLISHED_SIZES)
def test_names_shapes_and_shards_sum_to_the_published_bytes(model: str) -> None:
    total, count, num_shards = PUBLISHED_SIZES[model]
    published = read_published(model)
    tensors = target_tensors(published["config"])
    assert sum(tensor.size_bytes for tensor in tensors) == total
    assert len({tensor.name for tensor in tensors}) == len(tensors) == count
    assert len(cut_shards(tensors, published["max_shard_bytes"])) == num_shards


@pytest.mark.parametrize(("model", "billions"), [("gpt-oss-20b", 1.8), ("gpt-oss-120b", 1.7)])
def test_a_head_has_the_parameters_its_card_names(model: str, billions: float, tmp_path: Path) -> None:
    write_drafter(tmp_path, read_published(model), is_filled=lambda _: False, seed=0)
    drafter = read_drafter(tmp_path)
    elements = sum(np.prod(drafter.weights[name].shape) for name in drafter.weights if name != "d2t")
    assert round(elements / 1e9, 1) == billions
    assert drafter.config.num_layers == 4
    assert (tmp_path / "model.safetensors").stat().st_blocks * 512 < 2_000_000


@pytest.mark.parametrize("model", PUBLISHED_SIZES)
def test_only_the_chosen_layer_is_filled(model: str, tmp_path: Path) -> None:
    published = shrink(read_published(model))
    write_target(tmp_path, published, is_filled=lambda name: name.startswith("model.layers.1."), seed=3)
    tensors = read_folder_tensors(tmp_path)
    assert tensors.keys() == {tensor.name for tensor in target_tensors(published["config"])}
    for name, spec in tensors.items():
        values = load_tensor(spec)
        is_written = ".layers.1." in name or name.endswith("norm.weight")
        assert bool(np.any(values)) == is_written, name
        assert not name.endswith("norm.weight") or abs(values.mean() - 1) < 0.2


def test_values_follow_from_the_seed_and_the_name(tmp_path: Path) -> None:
    tensors = [Tensor(name=name, dtype="BF16", shape=(8, 64)) for name in ("a.weight", "b.weight")]
    write_file(tmp_path / "one", tensors, tensors, seed=1)
    write_file(tmp_path / "two", tensors[1:], tensors, seed=1)
    write_file(tmp_path / "other", tensors, tensors, seed=2)
    found = {}
    for name in ("one", "two", "other"):
        with safe_open(tmp_path / name, "pt") as file:
            found[name] = file.get_tensor("b.weight").float().numpy()
    np.testing.assert_array_equal(found["one"], found["two"])
    assert not np.array_equal(found["one"], found["other"])
    assert found["one"].std() == pytest.approx(64**-0.5, rel=0.2)


def test_a_table_can_be_filled_in_part(tmp_path: Path) -> None:
    published = shrink(read_published("gpt-oss-20b"))
    write_target(tmp_path, published, is_filled=lambda _: True, seed=0, table_rows=7)
    tensors = read_folder_tensors(tmp_path)
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        values = load_tensor(tensors[name])
        assert np.all(values[:7] != 0)
        assert not np.any(values[7:])


@pytest.mark.parametrize("model", PUBLISHED_SIZES)
def test_the_tokenizer_knows_the_special_tokens_where_they_are(model: str, tmp_path: Path) -> None:
    published = shrink(read_published(model))
    write_target(tmp_path, published, is_filled=lambda _: False, seed=0)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    special = published["special_tokens"]
    assert {name: tokenizer.token_to_id(name) for name in special} == special
    assert tokenizer.encode(f"hi{published['eos_token']}").ids[-1] == special[published["eos_token"]]
    assert tokenizer.decode(tokenizer.encode("Grüße").ids) == "Grüße"


def test_a_shortened_model_keeps_its_widths(tmp_path: Path) -> None:
    published = read_published("gpt-oss-20b")
    short = shorten(published, 2)
    assert [tensor.name for tensor in target_tensors(short["config"]) if ".2." in tensor.name] == []
    assert len(short["config"]["layer_types"]) == 2
    write_drafter(tmp_path, short, is_filled=lambda _: False, seed=0)
    assert read_drafter(tmp_path).config.aux_layer_ids == (0, 1, 2)
    with pytest.raises(UsageError, match="needs 2 layers"):
        shorten(published, 1)
