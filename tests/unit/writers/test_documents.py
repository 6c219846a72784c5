"""What stands in a converted head's config.json, and in its folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from peagle_trt.errors import CheckpointError, UsageError
from peagle_trt.readers import TargetCheckpoint, draft_to_target_ids, read_head
from peagle_trt.readers.tensors import LazyTensor, Weights
from peagle_trt.spec import TensorSpec
from peagle_trt.spec.tensor import TensorLocation
from peagle_trt.writers import convert_head, folder
from peagle_trt.writers.spelled import SpelledHead, SpelledTensor
from tests.support.checkpoints import edit_tensors
from tests.support.models import HIDDEN, VOCABULARY, save_drafter

AUX = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 7, 11]}}


def convert(tmp_path: Path, target: TargetCheckpoint | None, dialect: str, **settings: Any) -> dict[str, Any]:
    save_drafter(tmp_path / "ours", **(AUX | settings))
    convert_head(read_head(tmp_path / "ours"), target, dialect, tmp_path / "theirs")
    document: dict[str, Any] = json.loads((tmp_path / "theirs" / "config.json").read_text())
    return document


def test_vllm_finds_the_mask_token_under_every_name_it_knows(tmp_path: Path, deep_target: TargetCheckpoint) -> None:
    document = convert(tmp_path, deep_target, "vllm")
    assert [document[key] for key in ("mask_token_id", "pard_token", "ptd_token_id")] == [299] * 3
    assert document["architectures"] == ["LlamaForCausalLMEagle3"]
    assert document["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [2, 7, 11]
    assert (document["bos_token_id"], document["eos_token_id"]) == (1, 2)


def test_vllm_runs_head_norms_in_its_qwen_class(tmp_path: Path, deep_target: TargetCheckpoint) -> None:
    document = convert(tmp_path, deep_target, "vllm", model_type="qwen3")
    assert (document["architectures"], document["model_type"]) == (["Eagle3Qwen3ForCausalLM"], "qwen3")


def test_a_sequential_head_stays_one(tmp_path: Path, deep_target: TargetCheckpoint) -> None:
    document = convert(tmp_path, deep_target, "vllm", mask_token_id=None)
    assert "parallel_drafting" not in document
    assert "mask_token_id" not in document


def test_tensorrt_llm_counts_outputs(tmp_path: Path, deep_target: TargetCheckpoint) -> None:
    document = convert(tmp_path, deep_target, "trtllm")
    assert document["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 6, 10]
    assert document["eagle_config"]["next_layer_regular"] is True


def test_tensorrt_llm_has_no_room_for_a_map_of_the_whole_vocabulary(
    tmp_path: Path, deep_target: TargetCheckpoint
) -> None:
    save_drafter(tmp_path / "ours", **AUX, carries=("lm_head",))
    edit_tensors(tmp_path / "ours", d2t=np.zeros(VOCABULARY, np.int64))
    convert_head(read_head(tmp_path / "ours"), deep_target, "trtllm", tmp_path / "identity")
    assert "d2t" not in load_file(tmp_path / "identity" / "model.safetensors")
    edit_tensors(tmp_path / "ours", d2t=np.roll(np.arange(VOCABULARY), 1) - np.arange(VOCABULARY))
    with pytest.raises(CheckpointError, match="a whole vocabulary in another order"):
        convert_head(read_head(tmp_path / "ours"), deep_target, "trtllm", tmp_path / "permuted")


def test_speculators_nests_what_concerns_layers(tmp_path: Path, deep_target: TargetCheckpoint) -> None:
    document = convert(tmp_path, deep_target, "speculators", rope_theta=5e5, num_depths=8)
    assert document["speculators_model_type"] == "peagle"
    assert document["transformer_layer_config"]["rope_parameters"] == {"rope_type": "default", "rope_theta": 5e5}
    assert document["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 8
    assert document["speculators_config"]["verifier"]["architectures"] == ["LlamaForCausalLM"]
    assert "hidden_size" not in document


def test_a_speculators_head_that_vllm_would_misread_is_pointed_out(
    tmp_path: Path, deep_target: TargetCheckpoint
) -> None:
    save_drafter(tmp_path / "ours", **AUX, fc_norm=True)
    converted = convert_head(read_head(tmp_path / "ours"), deep_target, "speculators", tmp_path / "theirs")
    assert any("cannot load `fc_norm`" in note for note in converted.notes)


@pytest.mark.parametrize("dialect", ["vllm", "speculators", "automodel", "trtllm"])
def test_a_target_is_asked_for_where_its_tensors_are_needed(tmp_path: Path, dialect: str) -> None:
    with pytest.raises(UsageError) as caught:
        convert(tmp_path, None, dialect, draft_vocab_size=120)
    assert "--target" in caught.value.hint
    assert not (tmp_path / "theirs").exists()


@pytest.mark.parametrize("dialect", ["vllm", "trtllm"])
def test_no_target_is_asked_for_where_none_is_needed(tmp_path: Path, dialect: str) -> None:
    assert convert(tmp_path, None, dialect)["draft_vocab_size"] == VOCABULARY


@pytest.mark.parametrize(("kinds", "is_noted"), [(("sliding", "full"), True), (("sliding", "sliding"), False)])
def test_windows_that_vllm_will_not_run_are_pointed_out(tmp_path: Path, kinds: tuple[str, ...], is_noted: bool) -> None:
    save_drafter(tmp_path / "ours", layer_types=[f"{kind}_attention" for kind in kinds], sliding_window=8)
    converted = convert_head(read_head(tmp_path / "ours"), None, "vllm", tmp_path / "theirs")
    assert any("both windowed and full layers" in note for note in converted.notes) is is_noted


def test_a_head_for_another_target_is_not_converted(tmp_path: Path, deep_target: TargetCheckpoint) -> None:
    with pytest.raises(CheckpointError, match="vocabulary does not fit"):
        convert(tmp_path, deep_target, "vllm", vocab_size=301, draft_vocab_size=301)


def test_rows_of_a_quantized_target_are_written_in_float32(tmp_path: Path, deep_target: TargetCheckpoint) -> None:
    from gguf import GGMLQuantizationType, quants

    packed = quants.quantize(deep_target.weights.load("lm_head").astype(np.float32), GGMLQuantizationType.Q8_0)
    (tmp_path / "packed").write_bytes(packed.tobytes())
    location = TensorLocation(path=tmp_path / "packed", offset_bytes=0, length_bytes=packed.nbytes)
    spec = TensorSpec(name="output.weight", dtype="Q8_0", shape=(VOCABULARY, HIDDEN), location=location)
    values = quants.dequantize(packed, GGMLQuantizationType.Q8_0)
    lazy = LazyTensor(spec=spec, load=lambda: values)
    target = replace(deep_target, weights=Weights(dict(deep_target.weights) | {"lm_head": lazy}))
    convert(tmp_path, target, "vllm", draft_vocab_size=120)
    rows = draft_to_target_ids(read_head(tmp_path / "ours"))
    np.testing.assert_array_equal(load_file(tmp_path / "theirs" / "model.safetensors")["lm_head.weight"], values[rows])


def test_texts_and_licences_go_along(tmp_path: Path) -> None:
    save_drafter(tmp_path / "ours")
    for name in ("README.md", "LICENSE", "license-extra.txt", "notes.txt"):
        (tmp_path / "ours" / name).write_text(name)
    convert_head(read_head(tmp_path / "ours"), None, "vllm", tmp_path / "theirs")
    found = {path.name for path in (tmp_path / "theirs").iterdir()}
    assert found == {"README.md", "LICENSE", "license-extra.txt", "config.json", "model.safetensors"}


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    save_drafter(tmp_path / "ours")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "mine").write_text("")
    with pytest.raises(UsageError, match="exists and is not an empty folder"):
        convert_head(read_head(tmp_path / "ours"), None, "vllm", tmp_path / "theirs")


def test_the_folder_one_stands_in_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_drafter(tmp_path / "ours")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UsageError, match="is the folder you are in"):
        convert_head(read_head(tmp_path / "ours"), None, "vllm", Path())


def test_a_write_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    def pieces() -> Iterator[NDArray[np.uint8]]:
        yield np.zeros(4, np.uint8)
        raise KeyboardInterrupt

    tensor = SpelledTensor(name="fc.weight", dtype="F32", shape=(2,), pieces=pieces)
    (tmp_path / "ours").mkdir()
    with pytest.raises(KeyboardInterrupt):
        folder.write_folder(SpelledHead(document={}, tensors=(tensor,)), tmp_path / "ours", tmp_path / "theirs")
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]
