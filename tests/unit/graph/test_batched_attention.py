"""Attention of the batched graphs against numpy, at gpt-oss's window and head width, over caches full of junk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from safetensors.numpy import save_file

from peagle_trt.graph.attention import HeadShape
from peagle_trt.graph.batched.attention import BatchedAttention
from peagle_trt.graph.batched.nodes import BATCHED_OPSET
from peagle_trt.graph.batched.sinks import SINK_WIDTH
from peagle_trt.graph.builder import GraphBuilder
from peagle_trt.readers.safetensors_file import read_header
from peagle_trt.spec import RopeConfig
from peagle_trt.verify.rotary import rotate

HEADS = HeadShape(num_query=8, num_key_value=2, dim=64)
CAPACITY = 400
ROPE = RopeConfig(theta=150000.0)
JUNK = 50.0
"""Where a row is seen that should not be, a product with it would win every softmax."""


def open_attention(folder: Path, *, window: int, has_sinks: bool) -> tuple[onnxruntime.InferenceSession, np.ndarray]:
    """A graph of one layer's attention, and its sinks."""
    sinks = np.random.default_rng(1).standard_normal(HEADS.num_query).astype(np.float32) * 3
    save_file({"sinks": sinks}, folder / "weights.safetensors")
    builder = GraphBuilder("attention", read_header(folder / "weights.safetensors"), opset=BATCHED_OPSET)
    for name in ("start_positions", "key_lengths"):
        builder.input(name, "INT32", ["B"])
    builder.input("positions", "INT32", ["B", "S"])
    counts = (HEADS.num_query, HEADS.num_key_value, HEADS.num_key_value)
    parts = [
        builder.input(name, "FLOAT", ["B", "S", count * HEADS.dim])
        for name, count in zip(("query", "new_key", "new_value"), counts, strict=True)
    ]
    dims = ["B", HEADS.num_key_value, CAPACITY + int(has_sinks), HEADS.dim + has_sinks * SINK_WIDTH]
    for name in ("key.0", "value.0"):
        builder.input(name, "FLOAT", dims)
        builder.output(f"{name}.out", "FLOAT", dims)
    attention = BatchedAttention(
        builder, HEADS, ROPE, positions="positions", cache_capacity=CAPACITY, has_sinks=has_sinks
    )
    builder.op("Identity", attention.emit(0, parts, window=window, sinks="sinks"), output="mixed")
    builder.output("mixed", "FLOAT", ["B", "S", HEADS.num_query * HEADS.dim])
    path = folder / "attention.onnx"
    path.write_bytes(builder.model().SerializeToString())
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]), sinks


def expected_rows(parts: list[np.ndarray], start: int, count: int, window: int, sinks: np.ndarray | None) -> np.ndarray:
    """The last `count` rows of a whole text, [count, Hq * D]; parts are [T, heads, D], not rotated."""
    positions = np.arange(start + count)
    query, key = (rotate(ROPE, part.astype(np.float64), positions) for part in parts[:2])
    repeats = HEADS.num_query // HEADS.num_key_value
    key, value = (np.repeat(part, repeats, axis=1) for part in (key, parts[2].astype(np.float64)))
    scores = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(HEADS.dim)
    distance = positions[:, None] - positions[None, :]
    scores[:, (distance < 0) | (distance >= (window or CAPACITY))] = -np.inf
    columns = np.full((HEADS.num_query, len(positions), 1), -np.inf)
    if sinks is not None:
        columns[:] = sinks[:, None, None]
    together = np.concatenate([scores, columns], axis=-1)
    weights = np.exp(together - together.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed: np.ndarray = np.einsum("hqk,khd->qhd", weights[..., :-1], value).reshape(len(positions), -1)
    return mixed[start:]


@pytest.mark.parametrize("num_rows", [1, 8, 150])
@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize("window", [0, 1, 128])
def test_every_row_sees_what_it_should(tmp_path: Path, window: int, has_sinks: bool, num_rows: int) -> None:
    session, sinks = open_attention(tmp_path, window=window, has_sinks=has_sinks)
    rng = np.random.default_rng(num_rows)
    starts = np.array([0, 127, 128, CAPACITY - num_rows], np.int32)
    texts = [
        [
            rng.standard_normal((start + num_rows, count, HEADS.dim)).astype(np.float32)
            for count in (HEADS.num_query, HEADS.num_key_value, HEADS.num_key_value)
        ]
        for start in starts
    ]
    first = int(has_sinks)
    shape = (len(starts), HEADS.num_key_value, CAPACITY + first, HEADS.dim + has_sinks * SINK_WIDTH)
    caches = {name: np.full(shape, JUNK, np.float32) for name in ("key.0", "value.0")}
    if has_sinks:
        caches["key.0"][..., HEADS.dim :] = 0
        caches["key.0"][:, :, 0], caches["value.0"][:, :, 0] = 0, 0
        caches["key.0"][:, :, 0, HEADS.dim] = 1
    for index, (start, text) in enumerate(zip(starts, texts, strict=True)):
        past = rotate(ROPE, text[1][:start].astype(np.float64), np.arange(start)).astype(np.float32)
        for name, rows in (("key.0", past), ("value.0", text[2][:start])):
            caches[name][index, :, first : first + start, : HEADS.dim] = rows.transpose(1, 0, 2)
    names = ("query", "new_key", "new_value")
    feeds = {name: np.stack([t[i][-num_rows:].reshape(num_rows, -1) for t in texts]) for i, name in enumerate(names)}
    positions = (starts[:, None] + np.arange(num_rows)).astype(np.int32)
    feeds |= {"positions": positions, "start_positions": starts, "key_lengths": starts + np.int32(num_rows), **caches}
    (found,) = session.run(["mixed"], feeds)
    for index, (start, text) in enumerate(zip(starts, texts, strict=True)):
        expected = expected_rows(text, start, num_rows, window, sinks if has_sinks else None)
        np.testing.assert_allclose(found[index], expected, atol=2e-5, rtol=0)
