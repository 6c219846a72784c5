"""Experts that stay in the checkpoint against float32 copies of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from peagle_trt.engine.protocol import TargetRows
from peagle_trt.errors import CheckpointError
from peagle_trt.quant import link_target_weights
from peagle_trt.readers import read_target
from scripts.synthesize_checkpoint import read_published, shorten, write_drafter, write_target
from tests.support.models import open_pair, save_target
from tests.support.shrunk_models import shrink

# One order of summation against another: float32 over rows of 64 at most.
ROUNDING = 1e-5
# Model, and bytes of a shard: the small ones cut the layers of Qwen3-MoE between files, gate and up from down too.
CASES = {
    "gpt-oss": ("gpt-oss-120b", 1 << 30),
    "qwen3-moe": ("qwen3-coder-30b-a3b", 1 << 30),
    "qwen3-moe-cut": ("qwen3-coder-30b-a3b", 400_000),
    "qwen3-moe-cut-small": ("qwen3-coder-30b-a3b", 30_000),
}


@pytest.fixture(scope="module", params=CASES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model, max_shard_bytes = CASES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    published: dict[str, Any] = shrink(shorten(read_published(model), 2)) | {"max_shard_bytes": max_shard_bytes}
    write_target(folder / "target", published, is_filled=lambda _: True, seed=1)
    write_drafter(folder / "head", published, is_filled=lambda _: True, seed=2)
    return folder


def logits(folder: Path, precision: str, counts: tuple[int, ...]) -> np.ndarray:
    pair = open_pair(
        folder / "target",
        folder / "head",
        folder / f"{precision}{len(counts)}{counts[0]}",
        precision=precision,
        max_batch_size=2,
    )
    token_ids = np.random.default_rng(0).integers(3, 280, max(counts)).astype(np.int32)
    rows = [
        TargetRows(slot=slot, token_ids=token_ids[:count], start_position=0, num_logit_rows=count)
        for slot, count in enumerate(counts)
    ]
    return np.concatenate([output.logits.copy() for output in pair.engine.run_target(rows)])


@pytest.mark.parametrize("counts", [(1,), (40,), (17, 6)], ids=["row", "prompt", "two"])
def test_a_loop_over_chosen_experts_gives_the_numbers_of_float32(folder: Path, counts: tuple[int, ...]) -> None:
    np.testing.assert_allclose(
        logits(folder, "native", counts), logits(folder, "fp32", counts), atol=ROUNDING, rtol=ROUNDING
    )


def test_experts_beside_written_bfloat16_give_the_numbers_of_float32(folder: Path) -> None:
    # The checkpoint's other weights are bfloat16, so nothing is rounded.
    np.testing.assert_allclose(
        logits(folder, "bf16", (11, 6)), logits(folder, "fp32", (11, 6)), atol=ROUNDING, rtol=ROUNDING
    )


def test_the_onnx_checker_and_strict_shape_inference_agree(folder: Path, tmp_path: Path) -> None:
    build = tmp_path / "build"
    open_pair(folder / "target", folder / "head", build, precision="native", max_batch_size=2)
    # The checker refuses a file that has a second name.
    for shard in (build / "engine").glob("*.safetensors"):
        content = shard.read_bytes()
        shard.unlink()
        shard.write_bytes(content)
    for path in sorted((build / "engine").glob("*.onnx")):
        onnx.checker.check_model(path)
        onnx.shape_inference.infer_shapes_path(path, tmp_path / "inferred.onnx", check_type=True, strict_mode=True)


def test_experts_that_are_stored_turned_around_are_refused(tmp_path: Path) -> None:
    # transformers saves gpt-oss without quantization as [experts, in, out], which no view can turn.
    save_target(tmp_path / "target", "GptOssForCausalLM")
    with pytest.raises(CheckpointError, match=r"gate_up_proj` in another layout, which a graph cannot read in place"):
        link_target_weights(read_target(tmp_path / "target"), tmp_path / "target.safetensors")
