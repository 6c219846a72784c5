"""Blocks of integers: what they are worth, to us and to ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from peagle_trt.errors import CheckpointError
from peagle_trt.graph.builder import GraphBuilder
from peagle_trt.graph.layers import linear
from peagle_trt.quant.block_integers import INTEGER_BLOCK, dequantize_blocks, quantize_blocks
from peagle_trt.quant.layer_recipes import LayerScheme
from peagle_trt.quant.packing import StoredTensor, pack
from peagle_trt.quant.store import _write

NAME, BIAS = "layers.0.down_proj", "layers.0.down_bias"
ROWS = 20
BITS = (4, 8)


def matrix(rows: int = 48, columns: int = 96) -> np.ndarray:
    values = np.random.default_rng(0).normal(0, 0.05, (rows, columns)).astype(np.float32)
    # Blocks of zeros, of one sign, and with an outlier.
    values[0, :32] = 0
    values[1, 32:64] = np.abs(values[1, 32:64])
    values[2, 5] = 3
    return values


def steps(values: np.ndarray, bits: int) -> np.ndarray:
    """The step of every block's whole range, zero among it; [rows, blocks, 1]."""
    blocks = values.reshape(len(values), -1, INTEGER_BLOCK)
    reach = np.maximum(blocks.max(-1, keepdims=True), 0) - np.minimum(blocks.min(-1, keepdims=True), 0)
    return reach / (2**bits - 1)


def test_eight_bits_are_within_a_step_of_every_number() -> None:
    found = dequantize_blocks(quantize_blocks(matrix(), 8))
    # Half a step for the number, half for the zero point.
    limit = steps(matrix(), 8) * 1.01 + 1e-9
    assert (np.abs(found - matrix()).reshape(48, -1, INTEGER_BLOCK) <= limit).all()


def test_four_bits_lose_no_more_than_the_whole_range_would() -> None:
    values, step = matrix().reshape(48, -1, INTEGER_BLOCK), steps(matrix(), 4)
    step = np.where(step == 0, 1, step)
    zero = np.rint(-np.minimum(values.min(-1, keepdims=True), 0) / step)
    plain = (np.clip(np.rint(values / step) + zero, 0, 15) - zero) * step
    found = dequantize_blocks(quantize_blocks(matrix(), 4)).reshape(values.shape)
    ours, theirs = (np.square(each - values).sum(-1) for each in (found, plain))
    assert (ours <= theirs * (1 + 1e-5) + 1e-12).all()
    # The outlier's block outweighs all others together.
    assert ours[3:].sum() < 0.98 * theirs[3:].sum()


@pytest.mark.parametrize("bits", BITS)
def test_zeros_stay_zeros(bits: int) -> None:
    assert not dequantize_blocks(quantize_blocks(matrix(), bits))[0, :32].any()
    assert not dequantize_blocks(quantize_blocks(np.zeros((3, 32), np.float32), bits)).any()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("rows", [1, 4097])
def test_numbers_that_integers_hold_are_kept(bits: int, rows: int) -> None:
    codes = np.random.default_rng(1).integers(0, 2**bits, (rows, 64))
    codes[:, ::32], codes[:, 1::32] = 0, 2**bits - 1
    values = ((codes - 2 ** (bits - 1)) * 0.25).astype(np.float32)
    np.testing.assert_allclose(dequantize_blocks(quantize_blocks(values, bits)), values, rtol=1e-6)


def test_rows_that_make_no_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="rows of 48 make no blocks of 32"):
        quantize_blocks(np.ones((2, 48), np.float32), 4)


def stored_tensor(values: np.ndarray, name: str = NAME) -> StoredTensor:
    return StoredTensor(name=name, dtype="F32", shape=values.shape, produce=lambda: values)


def test_a_number_that_is_none_is_refused_by_name() -> None:
    values = matrix()
    values[3, 3] = np.nan
    with pytest.raises(CheckpointError, match=f"`{NAME}` holds a value that is no number"):
        pack(stored_tensor(values), LayerScheme(weights="int4"))[0].produce()


def test_columns_that_make_no_blocks_are_named() -> None:
    with pytest.raises(CheckpointError, match=f"`{NAME}` has 48 columns, which blocks of 32 do not divide"):
        pack(stored_tensor(np.ones((2, 48), np.float32)), LayerScheme(weights="int8"))


def session(folder: Path, bits: int, values: np.ndarray) -> onnxruntime.InferenceSession:
    scheme = LayerScheme(weights="int4" if bits == 4 else "int8")
    bias = np.random.default_rng(3).standard_normal(len(values)).astype(np.float32)
    stored = _write(folder / "weights.safetensors", [*pack(stored_tensor(values), scheme), stored_tensor(bias, BIAS)])
    builder = GraphBuilder("linear", stored)
    rows = builder.input("rows", "FLOAT", ["T", values.shape[1]])
    linear(builder, rows, NAME, BIAS, output="product")
    builder.output("product", "FLOAT", ["T", len(values)])
    path = folder / "linear.onnx"
    path.write_bytes(builder.model().SerializeToString())
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options)


def hard_rows(columns: int) -> np.ndarray:
    rows = np.random.default_rng(2).normal(0, 2, (ROWS, columns)).astype(np.float32)
    rows[1, 7], rows[2], rows[3] = 500, 0, rows[3] * 1e-5
    return rows


def rounded(rows: np.ndarray) -> np.ndarray:
    """Rows as 8-bit integers, a scale for each block of 32."""
    blocks = rows.astype(np.float64).reshape(len(rows), -1, INTEGER_BLOCK)
    scale = np.abs(blocks).max(-1, keepdims=True) / 127
    scale = np.where(scale == 0, 1, scale)
    return (np.rint(blocks / scale) * scale).reshape(rows.shape)


@pytest.mark.parametrize("bits", BITS)
def test_onnx_runtime_multiplies_the_numbers_that_we_mean(tmp_path: Path, bits: int) -> None:
    values, rows = matrix(), hard_rows(96)
    (found,) = session(tmp_path, bits, values).run(["product"], {"rows": rows})
    worth = dequantize_blocks(quantize_blocks(values, bits)).astype(np.float64)
    bias = np.random.default_rng(3).standard_normal(len(values)).astype(np.float32)
    # A tie of an activation may be rounded either way: one step of a block whose largest number is 500 is 4.
    np.testing.assert_allclose(found, rounded(rows) @ worth.T + bias, atol=2e-3, rtol=1e-4)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("num_rows", "columns"), [(49, 96), (960, 576), (33, 1536)])
def test_a_row_has_the_same_bits_alone_and_among_others(tmp_path: Path, bits: int, num_rows: int, columns: int) -> None:
    product = session(tmp_path, bits, matrix(num_rows, columns))
    rows = hard_rows(columns)
    alone = np.concatenate([product.run(["product"], {"rows": rows[[row]]})[0] for row in range(ROWS)])
    for count in (2, 3, 6, 7, 8, 17, ROWS):
        np.testing.assert_array_equal(product.run(["product"], {"rows": rows[:count]})[0], alone[:count])
