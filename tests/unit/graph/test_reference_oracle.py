"""Whole batched graphs of every recipe in onnx's own reference, whose operators share no code with ONNX Runtime's.

Custom nodes run through the function bodies that the graphs carry, native names of TensorRT's among them;
`SelectBlocks`, which is a plugin alone, is left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from peagle_trt.graph.builder import GraphBuilder
from peagle_trt.graph.integers import integer_linear
from peagle_trt.quant.layer_recipes import LayerScheme, WeightForm
from peagle_trt.quant.packing import StoredTensor, pack
from peagle_trt.quant.store import _write
from tests.support.batched import BatchedPair, build_pair
from tests.support.checkpoints import narrow_tensors
from tests.support.models import VOCABULARY, save_drafter, save_target
from tests.support.quantized import to_mxfp4

BATCH, ROWS = 2, 3
SMALL = {"max_batch_size": BATCH, "max_sequence_length": 16}
TARGETS = {
    "bf16": "LlamaForCausalLM",
    "fp8": "LlamaForCausalLM",
    "nvfp4": "LlamaForCausalLM",
    "nvfp4-mlp": "LlamaForCausalLM",
    "w4a16-nvfp4": "LlamaForCausalLM",
    "nvfp4-experts": "Qwen3MoeForCausalLM",
    "mxfp4": "GptOssForCausalLM",
}
"""What each recipe is tried with; gpt-oss has windows and sinks too."""
# Sums in another order: measured 5e-6 at most, where a matrix of another layer gives 1.
ROUNDING = 5e-5


def make_pair(folder: Path, precision: str) -> BatchedPair:
    is_packed = precision == "mxfp4"
    save_target(folder / "target", TARGETS[precision], **({"intermediate_size": 32} if is_packed else {}))
    if is_packed:
        to_mxfp4(folder / "target", folder / "plain")
    save_drafter(folder / "head", draft_vocab_size=120)
    for name in ("target", "head"):
        narrow_tensors(folder / name)
    pair = build_pair(folder / "target", folder / "head", folder / "build", precision=precision, **SMALL)
    for path in pair.engine_path.glob("*.model.safetensors"):
        # onnx 1.23 loads no weights from a file with a second name, which is how a build shares a checkpoint's.
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)
    return pair


def run_in_both(path: Path, given: dict[str, NDArray[Any]]) -> list[tuple[str, NDArray[Any], NDArray[Any]]]:
    """Every output's name and what each made of the inputs, caches half full of random rows among them."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(1)
    caches = [port for port in session.get_inputs() if port.name not in given]
    filled = {port.name: generator.standard_normal((BATCH, *port.shape[1:])).astype(np.float32) for port in caches}
    names = [port.name for port in session.get_outputs()]
    found = session.run(names, given | filled)
    expected = ReferenceEvaluator(onnx.load(path)).run(names, given | filled)
    return list(zip(names, found, expected, strict=True))


def require_equal(outcome: list[tuple[str, NDArray[Any], NDArray[Any]]]) -> None:
    for name, found, expected in outcome:
        if np.issubdtype(found.dtype, np.integer):
            np.testing.assert_array_equal(found, expected, err_msg=name)
        else:
            scale = np.abs(expected).max()
            np.testing.assert_allclose(found, expected, atol=ROUNDING * scale, rtol=0, err_msg=name)


@pytest.mark.parametrize("precision", TARGETS)
def test_a_target_of_every_recipe_is_what_the_reference_says(tmp_path: Path, precision: str) -> None:
    pair = make_pair(tmp_path, precision)
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (BATCH, ROWS)).astype(np.int32)
    given = {
        "token_ids": tokens,
        "start_positions": np.array([0, 9], np.int32),
        "key_lengths": np.array([ROWS, 9 + ROWS], np.int32),
        "logit_rows": np.array([[2], [1]], np.int32),
    }
    require_equal(run_in_both(pair.engine_path / "target.onnx", given))


@pytest.mark.parametrize("precision", ["bf16", "fp8", "nvfp4", "nvfp4-mlp", "w4a16-nvfp4"])
def test_a_drafter_of_every_recipe_is_what_the_reference_says(tmp_path: Path, precision: str) -> None:
    pair = make_pair(tmp_path, precision)
    generator, draft_tokens = np.random.default_rng(2), 2
    width = len(pair.drafter.config.aux_layer_ids) * pair.drafter.config.target_hidden_size
    starts = np.array([0, 5], np.int32)
    given = {
        "next_token_ids": generator.integers(0, VOCABULARY, (BATCH, ROWS)).astype(np.int32),
        "hidden": generator.standard_normal((BATCH, ROWS, width)).astype(np.float32),
        "num_accepted": np.array([2, 0], np.int32),
        "start_positions": starts,
        "key_lengths": starts + ROWS + draft_tokens - 1,
        "mask_token_ids": np.full(draft_tokens, pair.drafter.config.mask_token_id, np.int32),
    }
    require_equal(run_in_both(pair.engine_path / "drafter.onnx", given))


class MatMulNBits(OpRun):  # type: ignore[misc]
    """ONNX Runtime's product with block integers, from its documentation: rows stay as they are.

    Source: ONNX Runtime's `ContribOperators.md`: codes [N, blocks, bytes], the lowest first; float32 scales
    [N, blocks]; zero points packed like the codes of a row; `(code - zero point) * scale`.
    """

    op_domain = "com.microsoft"

    def _run(
        self, rows: Any, codes: Any, scales: Any, zero_points: Any, **attributes: Any
    ) -> tuple[NDArray[np.float32]]:
        bits = attributes["bits"]
        by_block = self._unpack(codes, bits)[..., : attributes["block_size"]]
        points = self._unpack(zero_points.reshape(attributes["N"], -1), bits)[:, : scales.size // attributes["N"]]
        shifted = by_block.astype(np.float64) - points[..., None]
        matrix = (shifted * scales.reshape(attributes["N"], -1, 1)).reshape(attributes["N"], -1)[:, : attributes["K"]]
        return ((rows.astype(np.float64) @ matrix.T).astype(np.float32),)

    @staticmethod
    def _unpack(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
        if bits == 8:
            return packed
        return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)


@pytest.mark.parametrize("form", ["int4", "int8"])
def test_integers_are_what_their_documentation_says(tmp_path: Path, form: WeightForm) -> None:
    generator = np.random.default_rng(3)
    matrix = generator.normal(0, 0.05, (48, 96)).astype(np.float32)
    whole = StoredTensor(name="o_proj", dtype="F32", shape=matrix.shape, produce=lambda: matrix)
    builder = GraphBuilder("linear", _write(tmp_path / "w.safetensors", pack(whole, LayerScheme(weights=form))))
    rows = builder.input("rows", "FLOAT", ["T", 96])
    integer_linear(builder, rows, "o_proj", output="product")
    builder.output("product", "FLOAT", ["T", 48])
    (tmp_path / "linear.onnx").write_bytes(builder.model().SerializeToString())
    given = {"rows": generator.standard_normal((5, 96)).astype(np.float32)}
    found = onnxruntime.InferenceSession(str(tmp_path / "linear.onnx")).run(["product"], given)[0]
    model = onnx.load(tmp_path / "linear.onnx")
    expected = ReferenceEvaluator(model, new_ops=[MatMulNBits]).run(["product"], given)[0]
    # The kernel rounds rows to 8 bits, half a step of 1/127 at most; integers that were read wrongly are off by 1.
    assert np.linalg.norm(found - expected) < 0.01 * np.linalg.norm(expected)
    assert np.linalg.norm(expected - given["rows"] @ matrix.T) < {"int4": 0.15, "int8": 0.01}[
        str(form)
    ] * np.linalg.norm(expected)
