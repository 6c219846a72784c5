"""Simulated FP8 and NVFP4 against the bytes that are written and against a search for the nearest number."""

from __future__ import annotations

import numpy as np
import torch

from peagle_trt.quant.calibration.simulation import simulate_fp8, simulate_nvfp4
from peagle_trt.quant.nvfp4 import dequantize_nvfp4, quantize_nvfp4

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float64)
TIES = torch.tensor([6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5, -6])


def test_what_is_simulated_is_what_is_written() -> None:
    matrix = np.random.default_rng(0).normal(0, 0.02, (64, 96)).astype(np.float32)
    matrix[7, 16:32] = 0
    matrix[3, 5] = 40.0
    written = dequantize_nvfp4(quantize_nvfp4(matrix))
    simulated = simulate_nvfp4(torch.from_numpy(matrix), torch.tensor(np.abs(matrix).max()))
    np.testing.assert_allclose(simulated.numpy(), written, rtol=3e-7, atol=0)


def test_ties_go_to_the_even_code() -> None:
    # A maximum of 6 * 448 and a block whose largest number is 6 make both scales 1.
    result = simulate_nvfp4(TIES, torch.tensor(2688.0))
    expected = torch.tensor([6, 0, 1, 1, 2, 2, 4, 4, -0.0, -1, -1, -2, -2, -4, -4, -6])
    assert torch.equal(result, expected)


def test_every_number_becomes_the_nearest() -> None:
    block = np.random.default_rng(1).uniform(-6, 6, (200, 16)).astype(np.float32)
    block[:, 0] = 6
    result = simulate_nvfp4(torch.from_numpy(block), torch.tensor(2688.0)).numpy()
    distance = np.abs(np.abs(block.astype(np.float64))[..., None] - E2M1)
    np.testing.assert_array_equal(np.abs(result), E2M1[distance.argmin(axis=-1)])


def test_a_last_block_may_be_short() -> None:
    values = torch.randn(3, 21, generator=torch.Generator().manual_seed(2))
    largest = values.abs().amax()
    whole = simulate_nvfp4(torch.nn.functional.pad(values, (0, 11)), largest)
    assert torch.equal(simulate_nvfp4(values, largest), whole[:, :21])


def test_the_type_stays() -> None:
    values = torch.randn(2, 16).to(torch.bfloat16)
    assert simulate_nvfp4(values, values.abs().amax()).dtype == torch.bfloat16
    assert simulate_fp8(values, values.abs().amax()).dtype == torch.bfloat16


def test_zeros_stay_zeros_whatever_the_maximum() -> None:
    assert torch.equal(simulate_nvfp4(torch.zeros(2, 16), torch.tensor(0.0)), torch.zeros(2, 16))


def test_what_fp8_cannot_hold_is_cut_off() -> None:
    result = simulate_fp8(torch.tensor([900.0, -900.0, 448.0, 17.0]), torch.tensor(448.0))
    # Between 16 and 32 the steps of E4M3 are 2, and 17 is a tie: 16 has the even code.
    assert torch.equal(result, torch.tensor([448.0, -448.0, 448.0, 16.0]))
