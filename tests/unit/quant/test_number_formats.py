"""FP8, NVFP4 and halves of float32 against torch, ml_dtypes and a slow search for the nearest number."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from peagle_trt.errors import CheckpointError
from peagle_trt.quant.fp8 import encode_e4m3, quantize_fp8
from peagle_trt.quant.halves import to_bfloat16, to_half
from peagle_trt.quant.mxfp4 import mxfp4_to_nvfp4
from peagle_trt.quant.nvfp4 import dequantize_nvfp4, encode_e2m1, global_scale, quantize_nvfp4
from peagle_trt.readers.float_codes import decode_e2m1, decode_e4m3, decode_e8m0
from tests.support.quantized import nvfp4

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def all_bfloat16() -> np.ndarray:
    values = np.arange(1 << 16, dtype=np.uint32).astype(np.uint32) << 16
    values = values.view(np.float32)
    return values[np.isfinite(values)]


def hard_matrix() -> np.ndarray:
    """Ordinary rows, an outlier, a block of zeros, tiny rows, and quotients halfway between codes."""
    matrix = np.random.default_rng(0).normal(0, 0.02, (64, 96)).astype(np.float32)
    matrix[3, 5] = 40.0
    matrix[7, 16:32] = 0
    matrix[9] *= 1e-9
    matrix[11, :16] = np.array([6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5, -6])
    return matrix


def test_e4m3_codes_are_torch_s() -> None:
    values = np.concatenate([all_bfloat16(), np.random.default_rng(1).normal(0, 40, 200_000).astype(np.float32)])
    expected = torch.from_numpy(values).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    np.testing.assert_array_equal(encode_e4m3(values), expected)


def test_e4m3_codes_are_ml_dtypes_within_the_range() -> None:
    values = np.random.default_rng(2).uniform(-448, 448, 100_000).astype(np.float32)
    np.testing.assert_array_equal(encode_e4m3(values), values.astype(ml_dtypes.float8_e4m3fn).view(np.uint8))


def test_what_lies_beyond_the_range_of_e4m3_becomes_its_largest() -> None:
    values = np.array([449, 465, 1e9, np.inf, -1e9, -np.inf], np.float32)
    np.testing.assert_array_equal(decode_e4m3(encode_e4m3(values)), [448, 448, 448, 448, -448, -448])


def test_fp8_takes_the_scale_from_the_largest_number() -> None:
    matrix = hard_matrix()
    packed = quantize_fp8(matrix)
    assert packed.scale == np.float32(40.0) / np.float32(448)
    codes = (torch.from_numpy(matrix) / torch.tensor(packed.scale)).to(torch.float8_e4m3fn).view(torch.uint8)
    np.testing.assert_array_equal(packed.codes, codes.numpy())


def test_fp8_of_a_matrix_larger_than_a_chunk_is_that_of_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = quantize_fp8(hard_matrix())
    monkeypatch.setattr("peagle_trt.quant.fp8._CHUNK", 100)
    np.testing.assert_array_equal(quantize_fp8(hard_matrix()).codes, whole.codes)


@pytest.mark.parametrize("quantize", [quantize_fp8, quantize_nvfp4])
def test_zeros_stay_zeros(quantize: object) -> None:
    packed = quantize(np.zeros((4, 32), np.float32))  # type: ignore[operator]
    assert not packed.codes.any()


def test_e2m1_codes_are_the_nearest_with_ties_to_even() -> None:
    values = np.concatenate([np.arange(-512, 513) / 64, np.random.default_rng(3).uniform(-7, 7, 5000)])
    distances = np.abs(np.abs(values)[:, None] - E2M1)
    # Where two are as near, the even code comes first.
    nearest = np.array([min(range(8), key=lambda code: (row[code], code % 2)) for row in distances])
    expected = nearest | np.where(values < 0, 8, 0)
    np.testing.assert_array_equal(encode_e2m1(values.astype(np.float32)), expected)


def test_nvfp4_bytes_are_those_of_the_rule_written_in_torch() -> None:
    matrix = np.random.default_rng(4).normal(0, 0.02, (48, 64)).astype(np.float32)
    codes, scales, overall, worth = nvfp4(torch.from_numpy(matrix))
    packed = quantize_nvfp4(matrix)
    np.testing.assert_array_equal(packed.block_scales, scales.view(torch.uint8).numpy())
    assert packed.global_scale == overall.numpy()
    np.testing.assert_array_equal(dequantize_nvfp4(packed), worth.numpy())
    np.testing.assert_array_equal(decode_e2m1(packed.codes), decode_e2m1(codes.numpy()))


def test_nvfp4_of_hard_rows_is_a_slow_search_s() -> None:
    matrix = hard_matrix()
    packed = quantize_nvfp4(matrix)
    scales = (decode_e4m3(packed.block_scales) * packed.global_scale).repeat(16, axis=1)
    assert (decode_e4m3(packed.block_scales) > 0).all()
    # The rule of the format: 448 for the largest block, 1 for a block of zeros, never 0.
    assert decode_e4m3(packed.block_scales[3, 0]) == 448
    assert decode_e4m3(packed.block_scales[7, 1]) == 1
    quotients = np.minimum(np.abs(matrix / scales), 6)
    distances = np.abs(quotients[..., None] - E2M1)
    found = np.abs(quotients - np.abs(decode_e2m1(packed.codes)))
    np.testing.assert_array_equal(found, distances.min(axis=-1))


def test_parts_of_a_fused_matrix_share_their_scale() -> None:
    parts = [np.full((16, 32), value, np.float32) for value in (1.0, 0.25)]
    shared = global_scale(*parts)
    whole = quantize_nvfp4(np.concatenate(parts))
    np.testing.assert_array_equal(np.concatenate([quantize_nvfp4(part, shared).codes for part in parts]), whole.codes)
    assert whole.global_scale == shared


def test_columns_that_make_no_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="24 columns are no multiple of 16"):
        quantize_nvfp4(np.zeros((2, 24), np.float32))


def mxfp4(powers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    return rng.integers(0, 256, (*powers.shape, 16), dtype=np.uint8), (powers + 127).astype(np.uint8)


def test_mxfp4_becomes_nvfp4_without_a_change() -> None:
    blocks, scales = mxfp4(np.random.default_rng(6).integers(-14, 4, (3, 8, 4)))
    packed = mxfp4_to_nvfp4("experts", blocks, scales)
    expected = (decode_e2m1(blocks) * decode_e8m0(scales)[..., None]).reshape(3, 8, -1)
    np.testing.assert_array_equal(dequantize_nvfp4(packed), expected)


def test_mxfp4_blocks_too_far_apart_are_refused_and_counted() -> None:
    blocks, scales = mxfp4(np.array([[3, -15, -14]]))
    with pytest.raises(CheckpointError, match=r"`experts` has 1 block\(s\) over 17 powers of two below"):
        mxfp4_to_nvfp4("experts", blocks, scales)


def test_an_mxfp4_block_of_zeros_may_have_any_scale() -> None:
    blocks, scales = mxfp4(np.array([[3, -100, -14]]))
    blocks[0, 1] = 0x80
    packed = mxfp4_to_nvfp4("experts", blocks, scales)
    assert not dequantize_nvfp4(packed)[0, 32:64].any()


def test_bfloat16_is_torch_s() -> None:
    values = np.random.default_rng(7).normal(0, 3, 100_000).astype(np.float32)
    values[:3] = [1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8)]
    expected = torch.from_numpy(values).bfloat16().view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(to_bfloat16(values), expected)


def test_a_number_too_large_for_float16_is_named() -> None:
    with pytest.raises(CheckpointError, match="`norm` holds 70000, more than the 65504 that float16 can"):
        to_half("norm", np.array([1, 7e4], np.float32), "F16")
