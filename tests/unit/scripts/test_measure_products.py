"""Every engine of the comparison computes the same products."""

from __future__ import annotations

import numpy as np
import pytest

from scripts.measure_products import ENGINES, measure, numpy_product, onnxruntime_product, torch_product

MATRICES = [np.random.default_rng(seed).random(shape, np.float32) for seed, shape in enumerate([(5, 3), (4, 5)])]
VALUES = np.random.default_rng(2).random((2, 3), np.float32)


@pytest.mark.parametrize("make", [onnxruntime_product, torch_product, numpy_product])
def test_a_chain_is_the_product_of_its_matrices(make) -> None:  # type: ignore[no-untyped-def]
    found = np.asarray(make(MATRICES, 1)(VALUES)).reshape(2, 4)
    assert found == pytest.approx(VALUES @ MATRICES[0].T @ MATRICES[1].T, rel=1e-5)


def test_rates_are_told_by_engine_and_rows() -> None:
    found = measure(((3, 5), (5, 4)), (1, 2), threads=1, budget_seconds=0.001)
    assert set(found) == set(ENGINES)
    assert all(rate > 0 for by_rows in found.values() for rate in by_rows.values())
    assert list(found["torch"]) == [1, 2]
