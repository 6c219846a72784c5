from __future__ import annotations

import pytest
import torch

from peagle_trt.train.optimizer import OptimizerSettings, SplitOptimizer, orthogonalize


@pytest.mark.parametrize("sizes", [(1, 5), (24, 24), (16, 48), (48, 16)])
def test_an_orthogonalized_matrix_has_singular_values_near_one(sizes: tuple[int, int]) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(sizes)
    singular = torch.linalg.svdvals(orthogonalize(matrix))
    # The quintic's fixed band, from its coefficients: about 0.7 to 1.2; the smallest values need more steps.
    assert singular.max() < 1.3
    assert singular.median() > 0.6


def test_the_rate_rises_and_then_falls_to_its_foot() -> None:
    settings = OptimizerSettings(warmup_steps=4, total_steps=12, final_share=0.1)
    shares = [settings.rate_share(step) for step in range(13)]
    assert shares[:4] == [0.25, 0.5, 0.75, 1.0]
    assert shares[4] == 1.0
    assert shares[12] == pytest.approx(0.1)
    assert shares[4:] == sorted(shares[4:], reverse=True)


def test_both_halves_descend_a_quadratic() -> None:
    torch.manual_seed(0)
    matrix, vector = torch.nn.Parameter(torch.randn(6, 4)), torch.nn.Parameter(torch.randn(5))
    settings = OptimizerSettings(matrix_rate=0.1, other_rate=0.1, warmup_steps=1, total_steps=150)
    optimizer = SplitOptimizer([("m", matrix), ("v", vector)], settings, compute_dtype=torch.float32)
    for step in range(150):
        (matrix.square().sum() + vector.square().sum()).backward()
        optimizer.step(step, max_norm=100.0)
    assert matrix.norm() < 0.5
    assert vector.norm() < 0.5
    assert matrix.grad is None
