"""Weights as a build stores them."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from peagle_trt.errors import MachineError
from peagle_trt.files import naming_os_errors
from peagle_trt.quant import open_stored, write_drafter_weights, write_target_weights
from peagle_trt.quant.store import ALIGNMENT_BYTES
from peagle_trt.readers import read_drafter, read_target
from peagle_trt.readers.safetensors_file import load_tensor
from tests.support.checkpoints import edit_tensors
from tests.support.models import HIDDEN, VOCABULARY, save_drafter, save_target


def store_drafter(folder: Path, **settings: Any) -> dict[str, np.ndarray]:
    """Tensors of a stored head beside a fixed target, read by the format's own library."""
    save_target(folder / "target")
    save_drafter(folder / "head", **settings)
    return store_pair(folder)


def store_pair(folder: Path) -> dict[str, np.ndarray]:
    write_drafter_weights(read_drafter(folder / "head"), read_target(folder / "target"), folder / "drafter.safetensors")
    return load_file(folder / "drafter.safetensors")


@pytest.mark.parametrize(("architecture", "head_dim"), [("LlamaForCausalLM", 16), ("Qwen2ForCausalLM", 18)])
def test_a_target_is_stored_fused_and_aligned(tmp_path: Path, architecture: str, head_dim: int) -> None:
    # A head of 18 makes tensors whose sizes are no multiple of the alignment.
    save_target(tmp_path, architecture, head_dim=head_dim)
    target = read_target(tmp_path)
    stored = write_target_weights(target, tmp_path / "out.safetensors")
    assert stored == open_stored(tmp_path / "out.safetensors")
    for spec in stored.values():
        assert spec.dtype == "F32"
        assert spec.location is not None
        assert spec.location.offset_bytes % ALIGNMENT_BYTES == 0
    parts = [target.weights.load(f"layers.2.{name}_proj") for name in "qkv"]
    np.testing.assert_array_equal(load_tensor(stored["layers.2.qkv_proj"]), np.concatenate(parts))
    parts = [target.weights.load(f"layers.5.{name}_proj") for name in ("gate", "up")]
    np.testing.assert_array_equal(load_tensor(stored["layers.5.gate_up_proj"]), np.concatenate(parts))
    assert ("layers.0.qkv_bias" in stored) == (architecture == "Qwen2ForCausalLM")
    assert not {name for name in stored if name.endswith(("q_proj", "up_bias")) and "gate" not in name}
    assert load_file(tmp_path / "out.safetensors").keys() >= stored.keys()


@pytest.mark.parametrize(
    "settings", [{}, {"norm_before_fc": True}, {"fc_norm": True}], ids=["plain", "normed", "parts"]
)
def test_the_masked_state_is_fused_once(tmp_path: Path, settings: dict[str, Any]) -> None:
    save_target(tmp_path / "target")
    raw = save_drafter(tmp_path / "head", **settings)
    state = raw["mask_hidden"].astype(np.float64).reshape(3, HIDDEN)
    if settings.get("norm_before_fc"):
        weight = raw["input_norm.weight"].reshape(3, HIDDEN)
        state = state / np.sqrt((state**2).mean() + 1e-5) * weight
    if settings.get("fc_norm"):
        weight = np.stack([raw[f"fc_norm.{index}.weight"] for index in range(3)])
        state = state / np.sqrt((state**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    expected = raw["fc.weight"].astype(np.float64) @ state.reshape(-1)
    np.testing.assert_allclose(store_pair(tmp_path)["fused_mask_hidden"], expected, rtol=1e-6)


def test_a_shared_full_output_layer_takes_no_bytes(tmp_path: Path) -> None:
    stored = store_drafter(tmp_path)
    assert not {"lm_head", "embed_tokens", "mask_hidden", "d2t"} & stored.keys()
    np.testing.assert_array_equal(stored["draft_to_target"], np.arange(VOCABULARY))


def test_a_reduced_vocabulary_takes_the_target_s_rows(tmp_path: Path) -> None:
    stored = store_drafter(tmp_path, draft_vocab_size=120)
    ids = np.arange(120) + load_file(tmp_path / "head" / "model.safetensors")["d2t"]
    np.testing.assert_array_equal(stored["draft_to_target"], ids)
    rows = load_file(tmp_path / "target" / "model.safetensors")["lm_head.weight"][ids]
    np.testing.assert_array_equal(stored["lm_head"], rows)


def test_a_tied_target_lends_rows_of_its_embeddings(tmp_path: Path) -> None:
    save_target(tmp_path / "target", tie_word_embeddings=True)
    save_drafter(tmp_path / "head", draft_vocab_size=120)
    stored = store_pair(tmp_path)
    table = load_file(tmp_path / "target" / "model.safetensors")["model.embed_tokens.weight"]
    np.testing.assert_array_equal(stored["lm_head"], table[stored["draft_to_target"]])


def test_what_a_head_owns_is_stored(tmp_path: Path) -> None:
    save_target(tmp_path / "target")
    save_drafter(tmp_path / "head")
    own = np.full((VOCABULARY, HIDDEN), 0.5, np.float32)
    edit_tensors(tmp_path / "head", embed_tokens__weight=own, lm_head__weight=-own)
    stored = store_pair(tmp_path)
    np.testing.assert_array_equal(stored["embed_tokens"], own)
    np.testing.assert_array_equal(stored["lm_head"], -own)


def test_a_failed_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_target(tmp_path / "target")

    def fill_up(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr("peagle_trt.quant.store._write_tensor", fill_up)
    with pytest.raises(MachineError, match="no space is left"):
        write_target_weights(read_target(tmp_path / "target"), tmp_path / "out" / "target.safetensors")
    assert list((tmp_path / "out").iterdir()) == []


REASONS = {errno.EACCES: "permission is denied", errno.EROFS: "read-only", errno.ENOTDIR: "is a file, not a folder"}


@pytest.mark.parametrize(("number", "reason"), REASONS.items())
def test_what_the_system_refuses_is_named(number: int, reason: str) -> None:
    with pytest.raises(MachineError, match=rf"`/some/file`.*{reason}"), naming_os_errors(Path("/some/file")):
        raise OSError(number, "refused")
