"""Weights that stay in the checkpoint's own files."""

from __future__ import annotations

import errno
import json
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from peagle_trt.errors import CheckpointError, MachineError
from peagle_trt.quant import link_drafter_weights, link_target_weights, open_stored
from peagle_trt.quant.store import stored_files
from peagle_trt.readers import read_drafter, read_target
from peagle_trt.readers.safetensors_file import load_tensor
from tests.support.checkpoints import edit_tensors, narrow_tensors
from tests.support.models import HIDDEN, VOCABULARY, save_drafter, save_target


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    save_target(tmp_path / "target")
    save_drafter(tmp_path / "head")
    for name in ("target", "head"):
        narrow_tensors(tmp_path / name)
    return tmp_path


def link_target(folder: Path) -> Any:
    return link_target_weights(read_target(folder / "target"), folder / "engine" / "target.safetensors")


def link_drafter(folder: Path) -> Any:
    target, drafter = read_target(folder / "target"), read_drafter(folder / "head")
    return link_drafter_weights(drafter, target, folder / "engine" / "drafter.safetensors")


def test_a_target_takes_no_bytes_of_its_own(pair: Path) -> None:
    stored, target = link_target(pair), read_target(pair / "target")
    assert stored.keys() == set(target.weights)
    assert sorted(path.name for path in (pair / "engine").iterdir()) == [
        "target.model.safetensors",
        "target.weights.json",
    ]
    assert (pair / "engine" / "target.model.safetensors").samefile(pair / "target" / "model.safetensors")
    for name, spec in stored.items():
        assert spec.dtype == "BF16"
        np.testing.assert_array_equal(load_tensor(spec), target.weights.load(name))


def test_a_drafter_stores_only_what_is_computed(pair: Path) -> None:
    stored = link_drafter(pair)
    written = {name for name, spec in stored.items() if spec.location.path.name == "drafter.safetensors"}
    assert written == {"fused_mask_hidden", "draft_to_target"}
    assert not {"lm_head", "embed_tokens", "mask_hidden"} & stored.keys()
    path = pair / "engine" / "drafter.safetensors"
    assert stored == open_stored(path)
    assert path.stat().st_size < 8 * VOCABULARY + 4 * HIDDEN + 1000
    assert {file.name for file in stored_files(path)} == {file.name for file in path.parent.iterdir()}


def test_a_map_that_changes_nothing_costs_no_output_layer(pair: Path) -> None:
    edit_tensors(pair / "head", d2t=np.zeros(VOCABULARY, np.int64))
    assert "lm_head" not in link_drafter(pair)


def test_gathered_rows_keep_the_checkpoint_s_type(tmp_path: Path) -> None:
    save_target(tmp_path / "target")
    save_drafter(tmp_path / "head", draft_vocab_size=120)
    narrow_tensors(tmp_path / "target")
    stored = link_drafter(tmp_path)
    assert stored["lm_head"].dtype == "BF16"
    rows = read_target(tmp_path / "target").weights.load("lm_head")
    ids = np.arange(120) + load_file(tmp_path / "head" / "model.safetensors")["d2t"]
    np.testing.assert_array_equal(load_tensor(stored["lm_head"]), rows[ids])


def test_an_output_layer_of_the_head_is_left_in_place(pair: Path) -> None:
    edit_tensors(pair / "head", lm_head__weight=np.ones((VOCABULARY, HIDDEN), np.float32))
    assert link_drafter(pair)["lm_head"].location.path.name == "drafter.model.safetensors"


def test_a_symbolic_link_of_a_hub_s_cache_is_followed(pair: Path) -> None:
    shard = pair / "target" / "model.safetensors"
    shard.rename(pair / "blob")
    shard.symlink_to(pair / "blob")
    link_target(pair)
    link = pair / "engine" / "target.model.safetensors"
    assert not link.is_symlink()
    assert link.samefile(pair / "blob")


def test_a_shard_that_cannot_be_linked_is_copied_and_told(
    pair: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    with caplog.at_level(logging.WARNING):
        stored = link_target(pair)
    assert "cannot be linked" in caplog.text
    copy = pair / "engine" / "target.model.safetensors"
    assert not copy.samefile(pair / "target" / "model.safetensors")
    assert copy.read_bytes() == (pair / "target" / "model.safetensors").read_bytes()
    assert stored["norm"].location.path == copy


def test_a_copy_that_does_not_fit_is_refused_before_it_starts(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peagle_trt.quant.in_place.try_link", lambda *_: False)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(MachineError, match="has 1,000 free"):
        link_target(pair)


def test_a_type_that_no_graph_reads_is_named(pair: Path) -> None:
    path = pair / "target" / "model.safetensors"
    tensors = _load_numpy(path)
    tensors["model.norm.weight"] = np.ones(HIDDEN, np.float64)
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=r"stores `model\.norm\.weight` as F64") as caught:
        link_target(pair)
    assert "fp32" in (caught.value.hint or "")


def _load_numpy(path: Path) -> dict[str, np.ndarray]:
    from safetensors.torch import load_file as load_torch

    return {name: tensor.float().numpy() for name, tensor in load_torch(path).items()}


INDEX_DAMAGE = {
    "cut": (lambda text: text[:100], "cannot be read"),
    "past the end": (lambda text: text.replace('"offset_bytes":', '"offset_bytes":9'), "past the end of"),
    "no file": (lambda text: text.replace("target.model", "target.gone"), "does not exist"),
}


@pytest.mark.parametrize(("damage", "message"), INDEX_DAMAGE.values(), ids=INDEX_DAMAGE)
def test_a_damaged_index_is_refused(pair: Path, damage: Any, message: str) -> None:
    link_target(pair)
    index = pair / "engine" / "target.weights.json"
    assert json.loads(index.read_text())
    index.write_text(damage(index.read_text()))
    with pytest.raises(CheckpointError, match=message):
        open_stored(pair / "engine" / "target.safetensors")
