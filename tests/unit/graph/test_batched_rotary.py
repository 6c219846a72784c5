"""Rotations of the batched graphs against float64, near and far."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from peagle_trt.graph.batched.nodes import BATCHED_OPSET
from peagle_trt.graph.batched.rotary import rotations
from peagle_trt.graph.builder import GraphBuilder
from peagle_trt.graph.rope import amplitude, inverse_frequencies
from peagle_trt.spec import RopeConfig

CASES = {
    "plain": RopeConfig(),
    "yarn": RopeConfig(theta=150000.0, scaling="yarn", factor=32.0, original_max_positions=4096, truncates_ramp=False),
}
WIDTH, MAX_POSITIONS = 64, 131_104


@pytest.mark.parametrize("rope", CASES.values(), ids=CASES.keys())
def test_rotations_are_exact_at_every_position(rope: RopeConfig) -> None:
    positions = np.array([[0, 1, 255, 256], [257, 65_535, 99_999, MAX_POSITIONS - 1]], np.int32)
    builder = GraphBuilder("rotations", {}, opset=BATCHED_OPSET)
    builder.input("positions", "INT32", ["B", "S"])
    queries, keys = rotations(builder, rope, WIDTH, "positions", max_positions=MAX_POSITIONS)
    names = [queries.cos, queries.sin, keys.cos, keys.sin]
    for name in names:
        builder.output(name, "FLOAT", ["B", "S", WIDTH // 2])
    session = onnxruntime.InferenceSession(builder.model().SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(names, {"positions": positions})
    angles = positions[..., None].astype(np.float64) * inverse_frequencies(rope, WIDTH).astype(np.float64)
    expected = [function(angles) * amplitude(rope) * scale for scale in (1 / 8, 1) for function in (np.cos, np.sin)]
    # The sum of two products of float32 numbers up to the amplitude, 1.35.
    np.testing.assert_allclose(found, expected, atol=4e-7, rtol=0)
