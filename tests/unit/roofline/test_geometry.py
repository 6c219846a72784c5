"""Sizes, against the shapes of every tensor and against published checkpoints."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from peagle_trt import catalog
from peagle_trt.readers import read_drafter, read_target
from peagle_trt.readers.huggingface import read_target_config
from peagle_trt.roofline import Geometry, drafter_geometry, find_pair, has_pair, target_geometry
from peagle_trt.spec.names import drafter_shapes, target_shapes
from scripts.synthesize_checkpoint import published_models, read_published, write_drafter

CATALOG = [entry.name for entry in catalog.list_entries()]


def matrices(shapes: dict[str, tuple[int, ...]]) -> int:
    """Elements of every matrix; norms, biases and sinks have no place in a roofline."""
    biases = ("router_bias", "experts_gate_up_bias", "experts_down_bias")
    return sum(math.prod(shape) for name, shape in shapes.items() if len(shape) > 1 and not name.endswith(biases))


def elements(model: Geometry) -> int:
    own = model.attention_parameters + model.feed_forward_parameters + model.router_parameters
    return own + model.head_parameters + model.embedding_rows * model.hidden_size


@pytest.mark.parametrize("name", CATALOG)
def test_the_catalog_has_sizes(name: str) -> None:
    assert has_pair(name)
    assert find_pair(name).num_depths >= find_pair(name).acceptance.draft_tokens


@pytest.mark.parametrize("name", published_models())
def test_a_published_target_has_the_sizes_of_its_configuration(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(read_published(name)["config"]))
    config = read_target_config(tmp_path)
    assert find_pair(name).target == target_geometry(config)
    assert elements(find_pair(name).target) == matrices(target_shapes(config))


@pytest.mark.parametrize("name", published_models())
def test_a_published_drafter_has_the_sizes_of_its_configuration(name: str, tmp_path: Path) -> None:
    write_drafter(tmp_path, read_published(name), is_filled=lambda _: False, seed=0)
    config = read_drafter(tmp_path).config
    assert find_pair(name).drafter == drafter_geometry(config)
    assert elements(find_pair(name).drafter) == matrices(drafter_shapes(config))


def test_the_tiny_pair_has_the_sizes_of_its_checkpoints() -> None:
    entry, pair = catalog.find_entry("tiny"), find_pair("tiny")
    target = read_target(catalog.target_path(entry)).config
    drafter = read_drafter(catalog.drafter_path(entry), num_target_layers=target.num_layers).config
    assert pair.target == target_geometry(target)
    assert pair.drafter == drafter_geometry(drafter)
    assert pair.num_depths == drafter.num_depths


def test_the_shipped_drafter_has_its_sizes() -> None:
    entry, pair = catalog.find_entry("smollm2-135m"), find_pair("smollm2-135m")
    drafter = read_drafter(catalog.drafter_path(entry), num_target_layers=pair.target.num_layers).config
    assert pair.drafter == drafter_geometry(drafter)
    assert pair.num_depths == drafter.num_depths


def test_windowed_layers_look_at_no_more_than_their_window() -> None:
    model = find_pair("gpt-oss-20b").target
    assert model.attended_tokens(100) == 24 * 100
    assert model.attended_tokens(1000) == 12 * 1000 + 12 * 128
