"""A checkpoint that memory cannot hold passes through the page cache; one that it can hold stays there."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from peagle_trt.errors import CheckpointError
from peagle_trt.quant.layer_recipes import load_layer_recipe
from peagle_trt.quant.stored_floats import pieces
from peagle_trt.readers import read_target
from peagle_trt.readers.safetensors_file import read_header
from peagle_trt.writers.quantized import page_cache, quantize_target


@pytest.mark.parametrize(("outgrows", "times"), [(False, 0), (True, 2)])
def test_every_matrix_is_let_go_of_twice_where_memory_is_too_small(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outgrows: bool, times: int
) -> None:
    let_go: Counter[tuple[int, int]] = Counter()
    monkeypatch.setattr(
        page_cache.os, "posix_fadvise", lambda _file, start, length, _: let_go.update([(start, length)])
    )
    monkeypatch.setattr("peagle_trt.writers.quantized.plan.outgrows_memory", lambda _: outgrows)
    target = read_target(sources / "llama")
    quantize_target(target, load_layer_recipe("fp8"), tmp_path / "out")
    place = target.weights["layers.0.q_proj"].spec.location
    assert place is not None
    assert let_go[place.offset_bytes, place.length_bytes] == times


def test_more_than_half_of_memory_is_too_much() -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert not page_cache.outgrows_memory(memory // 2)
    assert page_cache.outgrows_memory(memory // 2 + 1)


def test_a_file_that_is_cut_short_meanwhile_is_an_error_and_no_signal(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file({"w": torch.ones(64, 64)}, path)
    spec = read_header(path)["w"]
    os.truncate(path, path.stat().st_size - 4096)
    with pytest.raises(CheckpointError, match=r"ends within tensor `w`: it was cut short"):
        list(pieces(spec))
