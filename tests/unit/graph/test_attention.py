"""Windows and sinks of the attention kernel against numpy: where a window ends is not in its documentation.

Letters: n query rows, S positions, N query heads, M key heads, D head width.
"""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from peagle_trt.graph.attention import GroupedAttention, HeadShape, StepAttention
from peagle_trt.graph.builder import GraphBuilder
from peagle_trt.spec import RopeConfig

HEADS = HeadShape(num_query=6, num_key_value=2, dim=16)
CAPACITY = 96
ROPE = RopeConfig(theta=100.0)
"""Turns far within a few tokens, so that a wrong position shows."""


def expected_attention(rows: np.ndarray, past: int, window: int, sinks: np.ndarray | None) -> np.ndarray:
    """[n, N * D] of the last rows, for packed projections [S, (N + 2 M) D] of the whole text."""
    query, key, value = (
        part.reshape(len(rows), -1, HEADS.dim).astype(np.float64)
        for part in np.split(rows, np.cumsum(HEADS.widths)[:2], axis=1)
    )
    query, key = rotate(query), rotate(key)
    group = HEADS.num_query // HEADS.num_key_value
    output = np.zeros((len(rows) - past, HEADS.num_query, HEADS.dim))
    for row in range(past, len(rows)):
        first = max(0, row - window + 1) if window else 0
        for head in range(HEADS.num_query):
            scores = key[first : row + 1, head // group] @ query[row, head] / np.sqrt(HEADS.dim)
            weights = np.exp(scores)
            total = weights.sum() + (0.0 if sinks is None else np.exp(np.float64(sinks[head])))
            output[row - past, head] = weights @ value[first : row + 1, head // group] / total
    return output.reshape(len(output), -1)


def rotate(heads: np.ndarray) -> np.ndarray:
    half = HEADS.dim // 2
    angles = np.arange(len(heads))[:, None] * ROPE.theta ** (-np.arange(half) / half)
    turned = (heads[..., :half] + 1j * heads[..., half:]) * np.exp(1j * angles)[:, None]
    return np.concatenate([turned.real, turned.imag], axis=-1)


class Attention:
    """One layer's attention over caches that are appended in place."""

    def __init__(self, window: int, has_sinks: bool) -> None:
        builder = GraphBuilder("attention", {})
        rows = builder.input("rows", "FLOAT", ["n", sum(HEADS.widths)])
        sinks = builder.input("sinks", "FLOAT", [HEADS.num_query]) if has_sinks else ""
        attention = GroupedAttention(builder, HEADS, ROPE, num_groups=1, cache_capacity=CAPACITY)
        builder.op("Identity", attention.emit(0, rows, window=window, sinks=sinks), output="mixed")
        builder.output("mixed", "FLOAT", ["n", HEADS.num_query * HEADS.dim])
        self.session = onnxruntime.InferenceSession(
            builder.model().SerializeToString(), providers=["CPUExecutionProvider"]
        )
        self.caches = [np.zeros((1, HEADS.num_key_value, CAPACITY, HEADS.dim), np.float32) for _ in range(2)]

    def run(self, rows: np.ndarray, end: int, sinks: np.ndarray | None) -> np.ndarray:
        return run_in_place(
            self.session, dict(zip(("key.0.0", "value.0.0"), self.caches, strict=True)), rows, [end], sinks
        )


def run_in_place(
    session: onnxruntime.InferenceSession,
    caches: dict[str, np.ndarray],
    rows: np.ndarray,
    ends: list[int],
    sinks: np.ndarray | None,
) -> np.ndarray:
    """What an attention gives, whose caches are by the names of their inputs."""
    binding = session.io_binding()
    for name, cache in caches.items():
        place = ("cpu", 0, cache.dtype, cache.shape, cache.ctypes.data)
        binding.bind_input(name, *place)
        binding.bind_output(f"{name}.out", *place)
    binding.bind_cpu_input("rows", rows)
    binding.bind_cpu_input("key_lengths", np.array(ends, np.int32))
    if sinks is not None:
        binding.bind_cpu_input("sinks", sinks)
    binding.bind_output("mixed")
    session.run_with_iobinding(binding)
    found: np.ndarray = binding.get_outputs()[-1].numpy()
    return found


@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize("window", [0, 1, 2, 7, 64])
def test_a_row_sees_itself_and_the_window_before_it(window: int, has_sinks: bool) -> None:
    rng = np.random.default_rng(window)
    rows = rng.standard_normal((80, sum(HEADS.widths))).astype(np.float32)
    sinks = rng.standard_normal(HEADS.num_query).astype(np.float32) if has_sinks else None
    attention, start = Attention(window, has_sinks), 0
    for count in (20, 1, 6, 1, 40, 12):
        found = attention.run(rows[start : start + count], start + count, sinks)
        expected = expected_attention(rows[: start + count], start, window, sinks)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        start += count


@pytest.mark.parametrize("other", [6, 8, 0])
def test_one_token_more_or_less_would_show(other: int) -> None:
    rows = np.random.default_rng(7).standard_normal((20, sum(HEADS.widths))).astype(np.float32)
    found = Attention(7, has_sinks=False).run(rows, 20, None)
    assert np.abs(found - expected_attention(rows, 0, other, None)).max() > 0.1


def test_sinks_that_are_left_out_would_show() -> None:
    rng = np.random.default_rng(8)
    rows = rng.standard_normal((20, sum(HEADS.widths))).astype(np.float32)
    sinks = rng.standard_normal(HEADS.num_query).astype(np.float32)
    found = Attention(0, has_sinks=True).run(rows, 20, sinks)
    assert np.abs(found - expected_attention(rows, 0, 0, None)).max() > 0.1


def step_session(window: int, has_sinks: bool) -> onnxruntime.InferenceSession:
    """One layer's attention over sequences of one row each, their caches one after the other."""
    builder = GraphBuilder("steps", {})
    rows = builder.input("rows", "FLOAT", ["B", sum(HEADS.widths)])
    sinks = builder.input("sinks", "FLOAT", [HEADS.num_query]) if has_sinks else ""
    attention = StepAttention(builder, HEADS, ROPE, cache_capacity=CAPACITY)
    builder.op("Identity", attention.emit(0, rows, window=window, sinks=sinks), output="mixed")
    builder.output("mixed", "FLOAT", ["B", HEADS.num_query * HEADS.dim])
    return onnxruntime.InferenceSession(builder.model().SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize("window", [0, 1, 7, 64])
def test_steps_together_are_bitwise_steps_alone(window: int, has_sinks: bool) -> None:
    rng = np.random.default_rng(window)
    texts = [rng.standard_normal((length, sum(HEADS.widths))).astype(np.float32) for length in (80, 3, 41)]
    sinks = rng.standard_normal(HEADS.num_query).astype(np.float32) if has_sinks else None
    expected, caches = [], []
    for text in texts:
        alone = Attention(window, has_sinks)
        alone.run(text[:-1], len(text) - 1, sinks)
        caches.append([cache.copy() for cache in alone.caches])
        expected.append(alone.run(text[-1:], len(text), sinks)[0])
        np.testing.assert_allclose(expected[-1], expected_attention(text, len(text) - 1, window, sinks)[0], atol=1e-5)
    keys, values = (np.concatenate(kind) for kind in zip(*caches, strict=True))
    last_rows, ends = np.stack([text[-1] for text in texts]), [len(text) for text in texts]
    found = run_in_place(step_session(window, has_sinks), {"key.0": keys, "value.0": values}, last_rows, ends, sinks)
    np.testing.assert_array_equal(found, np.stack(expected))
