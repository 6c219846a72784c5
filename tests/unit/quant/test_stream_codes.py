"""Codes made from stored bits are those of the plain formulations and of torch, bit for bit."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from peagle_trt.errors import CheckpointError
from peagle_trt.quant import stored_floats
from peagle_trt.quant.fp8 import quantize_fp8
from peagle_trt.quant.nvfp4 import encode_e2m1, quantize_nvfp4
from peagle_trt.quant.stored_floats import largest_magnitude, pieces, to_float32
from peagle_trt.quant.stream_codes import fp8_encoder, fp8_scale, nvfp4_codes, nvfp4_scale
from peagle_trt.readers.safetensors_file import read_header

TYPES = {"BF16": (ml_dtypes.bfloat16, np.uint16), "F16": (np.float16, np.uint16), "F32": (np.float32, np.uint32)}
TORCH_TYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}


def adversarial(dtype: str) -> np.ndarray:
    """Rows of very different sizes, a row and some blocks of zeros, negative zeros, and numbers on every bound."""
    rng = np.random.default_rng(3)
    matrix = rng.standard_normal((80, 1040)) * np.exp(2 * rng.standard_normal((80, 1)))
    matrix[3] = 0
    matrix[5, :48] = -0.0
    matrix[7] = 1e-5
    # The largest of the block is 6, so the quotients are these numbers themselves.
    matrix[9, :16] = [6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5, -6]
    return matrix.astype(TYPES[dtype][0])


@pytest.mark.parametrize("dtype", TYPES)
def test_nvfp4_from_bits_is_nvfp4_from_numbers(dtype: str) -> None:
    matrix = adversarial(dtype)
    plain = quantize_nvfp4(matrix.astype(np.float32))
    scale = nvfp4_scale(np.float32(np.abs(matrix.astype(np.float32)).max()))
    codes, scales = nvfp4_codes(matrix.reshape(-1).view(TYPES[dtype][1]), dtype, scale)
    assert scale == plain.global_scale
    np.testing.assert_array_equal(scales, plain.block_scales.reshape(-1))
    np.testing.assert_array_equal(codes, plain.codes.reshape(-1))


@pytest.mark.parametrize("scale", [2.0**-11, 0.001])
def test_quotients_on_a_bound_take_the_even_code(scale: float) -> None:
    bounds = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.float32)
    near = np.concatenate(
        [bounds, np.nextafter(bounds, np.float32(0)), np.nextafter(bounds, np.float32(9)), [6.0, 0.0]]
    )
    block = np.concatenate([near, -near])[:32].astype(np.float32)
    codes, scales = nvfp4_codes(block.view(np.uint32), "F32", np.float32(scale))
    worth = torch.tensor(scales).view(torch.float8_e4m3fn).float().numpy() * np.float32(scale)
    expected = encode_e2m1(block / np.repeat(worth, 16))
    np.testing.assert_array_equal(np.stack([codes & 15, codes >> 4], -1).reshape(-1), expected)


@pytest.mark.parametrize("dtype", TYPES)
def test_fp8_from_bits_is_fp8_from_numbers_and_torchs(dtype: str) -> None:
    matrix = adversarial(dtype)
    plain = quantize_fp8(matrix.astype(np.float32))
    scale = fp8_scale(np.float32(np.abs(matrix.astype(np.float32)).max()))
    codes = fp8_encoder(dtype, scale)(matrix.reshape(-1).view(TYPES[dtype][1]))
    assert scale == plain.scale
    np.testing.assert_array_equal(codes, plain.codes.reshape(-1))
    quotients = torch.tensor(matrix.astype(np.float32) / scale).clamp(-448, 448)
    np.testing.assert_array_equal(codes, quotients.to(torch.float8_e4m3fn).view(torch.uint8).numpy().reshape(-1))


def test_zeros_take_the_scale_1() -> None:
    assert (fp8_scale(np.float32(0)), nvfp4_scale(np.float32(0))) == (1, 1)


@pytest.mark.parametrize("dtype", TORCH_TYPES)
def test_the_largest_magnitude_is_found_among_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    monkeypatch.setattr(stored_floats, "PIECE_ELEMENTS", 16)
    values = torch.linspace(-3, 2, 70).reshape(7, 10).to(TORCH_TYPES[dtype])
    save_file({"w": values}, tmp_path / "w.safetensors")
    spec = read_header(tmp_path / "w.safetensors")["w"]
    assert largest_magnitude(spec) == 3
    read = np.concatenate([to_float32(piece, dtype) for piece in pieces(spec)])
    np.testing.assert_array_equal(read, values.float().reshape(-1).numpy())


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
@pytest.mark.parametrize("dtype", TORCH_TYPES)
def test_what_is_no_number_is_found_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, value: float
) -> None:
    monkeypatch.setattr(stored_floats, "PIECE_ELEMENTS", 16)
    values = torch.ones(7, 10)
    values[4, 2] = value
    save_file({"w": values.to(TORCH_TYPES[dtype])}, tmp_path / "w.safetensors")
    with pytest.raises(CheckpointError, match=r"`w` holds values that are nan or infinite, first at \[4, 2\]"):
        largest_magnitude(read_header(tmp_path / "w.safetensors")["w"])


def test_a_tensor_of_nothing_has_no_magnitude(tmp_path: Path) -> None:
    save_file({"w": torch.ones(0, 4)}, tmp_path / "w.safetensors")
    assert largest_magnitude(read_header(tmp_path / "w.safetensors")["w"]) == 0
