"""Graphs over a checkpoint's own tensors against graphs over float32 copies of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from peagle_trt.engine.protocol import DraftRows, TargetRows
from tests.support.checkpoints import narrow_tensors
from tests.support.models import BuiltPair, open_pair, save_drafter, save_target

# One order of summation against another: float32 over rows of 96 at most.
ROUNDING = 2e-5
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}, {}),
    "biased-tied": (
        "LlamaForCausalLM",
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
        {"attention_bias": True},
    ),
    "qwen3-few-words": ("Qwen3ForCausalLM", {}, {"draft_vocab_size": 120, "norm_before_fc": True}),
}


@pytest.fixture(params=CASES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    architecture, settings, head = CASES[request.param]
    save_target(tmp_path / "target", architecture, **settings)
    save_drafter(tmp_path / "head", **head)
    return tmp_path


def open_with(folder: Path, precision: str) -> BuiltPair:
    return open_pair(folder / "target", folder / "head", folder / precision, precision=precision, max_batch_size=2)


def outputs(pair: BuiltPair) -> list[np.ndarray]:
    token_ids = np.random.default_rng(0).integers(3, 290, 20).astype(np.int32)
    rows = [
        TargetRows(slot=slot, token_ids=token_ids[: 20 - slot], start_position=0, num_logit_rows=3) for slot in (0, 1)
    ]
    found = [[each.logits.copy(), each.hidden.copy()] for each in pair.engine.run_target(rows)]
    draft_rows = DraftRows(
        slot=0, next_token_ids=np.roll(token_ids, -1), hidden=found[0][1], num_accepted=19, start_position=0
    )
    return [*found[0], *found[1], pair.engine.run_drafter([draft_rows], 4).logits.copy()]


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", "bfloat16"), ("fp16", "float16")])
def test_written_halves_give_the_numbers_of_float32(folder: Path, precision: str, dtype: str) -> None:
    for name in ("target", "head"):
        narrow_tensors(folder / name, dtype)
    expected, found = outputs(open_with(folder, "fp32")), outputs(open_with(folder, precision))
    for want, got in zip(expected, found, strict=True):
        np.testing.assert_allclose(got, want, atol=ROUNDING, rtol=ROUNDING)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_weights_in_place_give_the_numbers_of_float32(folder: Path, dtype: str) -> None:
    for name in ("target", "head"):
        narrow_tensors(folder / name, dtype)
    expected, found = outputs(open_with(folder, "fp32")), outputs(open_with(folder, "native"))
    for want, got in zip(expected, found, strict=True):
        np.testing.assert_allclose(got, want, atol=ROUNDING, rtol=ROUNDING)


def test_a_wide_matrix_is_used_in_blocks_of_rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow_tensors(folder / "target")
    expected = outputs(open_with(folder, "fp32"))
    # 7 rows of 64 float32: no size in the model is a multiple of it.
    monkeypatch.setattr("peagle_trt.graph.builder.MAX_WIDENED_BYTES", 7 * 64 * 4)
    found = outputs(open_with(folder, "native"))
    for want, got in zip(expected, found, strict=True):
        np.testing.assert_allclose(got, want, atol=ROUNDING, rtol=ROUNDING)
    model = onnx.load(folder / "native" / "engine" / "target.b1.onnx", load_external_data=False)
    blocks = [item for item in model.graph.initializer if ".rows." in item.name and item.name[0] in "le"]
    assert max(item.dims[0] for item in blocks) == 7
    assert sum(item.dims[0] for item in blocks if item.name.startswith(("lm_head", "embed_tokens"))) == 300


def test_the_onnx_checker_and_strict_shape_inference_agree(folder: Path, tmp_path: Path) -> None:
    for name in ("target", "head"):
        narrow_tensors(folder / name)
    open_with(folder, "native")
    # The checker refuses a file that has a second name; without the checkpoint's folder there is one left.
    for name in ("target", "head"):
        (folder / name / "model.safetensors").unlink()
    for path in sorted((folder / "native" / "engine").glob("*.onnx")):
        onnx.checker.check_model(path)
        onnx.shape_inference.infer_shapes_path(path, tmp_path / "inferred.onnx", check_type=True, strict_mode=True)
