"""The batched graphs in TensorRT's own compiler: they build, and attention is what was meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from peagle_trt.graph.batched import batched_ports
from peagle_trt.graph.builder import Element
from tests.support.batched import build_pair
from tests.support.capabilities import needs
from tests.support.models import save_drafter, save_target
from tests.support.rtx import Compiled, compile_graph
from tests.unit.graph.test_drafter_graph import CASES as HEADS
from tests.unit.graph.test_target_graph import CASES as TARGETS

pytestmark = [pytest.mark.rtx, needs("rtx")]

FULL, WINDOWED = ("LOWER_RIGHT", True, False, False), ("NONE", False, True, False)
HALVES: list[Element] = ["FLOAT16", "BFLOAT16"]


def compiled(folder: Path, role: str, element: Element, head: dict[str, Any] | None = None, **options: Any) -> Compiled:
    """Build one graph of a pair whose target is saved."""
    save_drafter(folder / "drafter", **(head or {}))
    pair = build_pair(folder / "target", folder / "drafter", folder / "build", element=element, **options)
    config = pair.target_config if role == "target" else pair.drafter.config
    return compile_graph(pair.engine_path / f"{role}.onnx", batched_ports(config, pair.shapes, element=element))


@pytest.mark.parametrize("element", HALVES)
@pytest.mark.parametrize("case", ["llama", "llama-tied-biased", "llama-yarn", "qwen3", "qwen3-moe"])
def test_a_target_builds_with_lengths_and_no_mask(tmp_path: Path, case: str, element: Element) -> None:
    architecture, settings = TARGETS[case]
    save_target(tmp_path / "target", architecture, **settings)
    assert compiled(tmp_path, "target", element).attentions == [FULL] * 6


@pytest.mark.parametrize("element", HALVES)
def test_gpt_oss_builds_and_only_its_windows_have_masks(tmp_path: Path, element: Element) -> None:
    save_target(tmp_path / "target", "GptOssForCausalLM")
    assert compiled(tmp_path, "target", element).attentions == [WINDOWED, FULL] * 3


@pytest.mark.parametrize("case", HEADS)
def test_a_drafter_builds(tmp_path: Path, case: str) -> None:
    save_target(tmp_path / "target")
    found = compiled(tmp_path, "drafter", "BFLOAT16", HEADS[case])
    windows = HEADS[case].get("layer_types", [])
    layers = HEADS[case].get("num_hidden_layers", 2)
    expected = [WINDOWED if kind == "sliding_attention" else FULL for kind in windows] or [FULL] * layers
    assert found.attentions == expected


@pytest.mark.parametrize("element", HALVES)
def test_a_drafter_for_plugins_builds_from_their_function_bodies(tmp_path: Path, element: Element) -> None:
    save_target(tmp_path / "target")
    assert compiled(tmp_path, "drafter", element, uses_plugins=True).attentions == [FULL] * 2


def test_float32_builds_because_attention_may_be_taken_apart(tmp_path: Path) -> None:
    save_target(tmp_path / "target", "GptOssForCausalLM")
    found = compiled(tmp_path, "target", "FLOAT")
    assert all(is_decomposable for *_, is_decomposable in found.attentions)
