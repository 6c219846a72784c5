"""Experts in a graph: both spellings against numpy, and every peculiarity of gpt-oss seen to matter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.numpy import save_file

from peagle_trt.engine.protocol import TargetRows
from peagle_trt.graph.builder import GraphBuilder
from peagle_trt.graph.experts import fused_experts, gathered_experts
from peagle_trt.readers.safetensors_file import read_header
from peagle_trt.spec import ExpertsConfig
from peagle_trt.spec.names import expert_shapes
from peagle_trt.verify.feed_forward import mix_experts
from tests.support.models import VOCABULARY, open_pair, save_drafter, save_target

HIDDEN = 48
CASES = {
    "gpt-oss": ExpertsConfig(
        num_experts=8,
        experts_per_token=4,
        intermediate_size=40,
        activation="clamped_swiglu",
        limit=1.5,
        has_router_bias=True,
        has_expert_bias=True,
    ),
    "qwen3-moe": ExpertsConfig(num_experts=16, experts_per_token=5, intermediate_size=24),
    "shares-as-they-are": ExpertsConfig(
        num_experts=16, experts_per_token=5, intermediate_size=24, normalizes_shares=False
    ),
    "one-of-one": ExpertsConfig(num_experts=1, experts_per_token=1, intermediate_size=16),
    "all-of-three": ExpertsConfig(num_experts=3, experts_per_token=3, intermediate_size=17),
}
Emit = Callable[[GraphBuilder, ExpertsConfig, str, str], str]


def open_experts(folder: Path, emit: Emit, experts: ExpertsConfig) -> tuple[Any, dict[str, np.ndarray]]:
    """A graph of nothing but experts, and their weights."""
    rng = np.random.default_rng(len(folder.name))
    weights = {
        f"layers.0.{name}": (rng.standard_normal(shape) * 0.3).astype(np.float32)
        for name, shape in expert_shapes(experts, HIDDEN).items()
    }
    save_file(weights, folder / "weights.safetensors")
    builder = GraphBuilder("experts", read_header(folder / "weights.safetensors"))
    rows = builder.input("rows", "FLOAT", ["T", HIDDEN])
    builder.op("Identity", emit(builder, experts, rows, "layers.0."), output="mixed")
    builder.output("mixed", "FLOAT", ["T", HIDDEN])
    path = folder / "experts.onnx"
    path.write_bytes(builder.model().SerializeToString())
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]), weights


@pytest.mark.parametrize("experts", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("emit", [fused_experts, gathered_experts])
@pytest.mark.parametrize("count", [1, 6, 33])
def test_experts_are_mixed_as_the_reference_does(
    tmp_path: Path, emit: Emit, experts: ExpertsConfig, count: int
) -> None:
    session, weights = open_experts(tmp_path, emit, experts)
    rows = np.random.default_rng(count).standard_normal((count, HIDDEN)).astype(np.float32)
    (found,) = session.run(["mixed"], {"rows": rows})
    expected, margin = mix_experts(experts, weights.__getitem__, "layers.0.", rows.astype(np.float64))
    assert margin > 1e-5
    np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize("emit", [fused_experts, gathered_experts])
def test_a_row_gets_the_same_alone_and_among_others(tmp_path: Path, emit: Emit) -> None:
    session, _ = open_experts(tmp_path, emit, CASES["gpt-oss"])
    rows = np.random.default_rng(0).standard_normal((6, HIDDEN)).astype(np.float32)
    (together,) = session.run(["mixed"], {"rows": rows})
    alone = np.concatenate([session.run(["mixed"], {"rows": row[None]})[0] for row in rows])
    np.testing.assert_allclose(together, alone, atol=1e-6 * np.abs(together).max())


def drop_sinks(model: Any) -> None:
    for layer in model.model.layers:
        layer.self_attn.sinks.fill_(-1e4)


def widen_window(model: Any) -> None:
    model.config.sliding_window = 8


def lift_limit(model: Any) -> None:
    for layer in model.model.layers:
        layer.mlp.experts.limit = 1e9


def change_slope(model: Any) -> None:
    for layer in model.model.layers:
        layer.mlp.experts.alpha = 1.0


def drop_biases(model: Any) -> None:
    for layer in model.model.layers:
        layer.mlp.experts.down_proj_bias.zero_()


def drop_amplitude(model: Any) -> None:
    model.model.rotary_emb.attention_scaling = 1.0


CHANGES = [drop_sinks, widen_window, lift_limit, change_slope, drop_biases, drop_amplitude]


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray, np.ndarray]:
    """Folder of a random gpt-oss, a prompt longer than its window, and our logits."""
    folder = tmp_path_factory.mktemp("gpt_oss")
    save_target(folder / "target", "GptOssForCausalLM", seed=11)
    save_drafter(folder / "drafter")
    engine = open_pair(folder / "target", folder / "drafter", folder / "build").engine
    token_ids = np.random.default_rng(1).integers(0, VOCABULARY, 30).astype(np.int32)
    (found,) = engine.run_target([TargetRows(slot=0, token_ids=token_ids, start_position=0, num_logit_rows=30)])
    return folder / "target", token_ids, found.logits.copy()


@pytest.mark.parametrize("change", CHANGES)
def test_a_part_of_gpt_oss_that_is_left_out_would_show(
    gpt_oss: tuple[Path, np.ndarray, np.ndarray], change: Callable[[Any], None]
) -> None:
    from transformers import GptOssForCausalLM

    folder, token_ids, found = gpt_oss
    model = GptOssForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    inputs = torch.from_numpy(token_ids).long()[None]
    with torch.no_grad():
        np.testing.assert_allclose(found, model(inputs).logits[0].numpy(), atol=1e-4)
        change(model)
        assert np.abs(found - model(inputs).logits[0].numpy()).max() > 0.05
