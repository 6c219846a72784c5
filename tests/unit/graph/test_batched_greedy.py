"""Greedy ids of the batched target, where a runtime's own ArgMax may do as it likes."""

from __future__ import annotations

import numpy as np
import onnxruntime

from peagle_trt.graph.batched.greedy import pick_greedily
from peagle_trt.graph.batched.nodes import BATCHED_OPSET
from peagle_trt.graph.builder import GraphBuilder

VOCABULARY = 1000


def picked(logits: np.ndarray) -> list[list[int]]:
    builder = GraphBuilder("greedy", {}, opset=BATCHED_OPSET)
    builder.input("logits", "FLOAT", ["B", "L", VOCABULARY])
    builder.output(pick_greedily(builder, "logits", VOCABULARY, output="ids"), "INT32", ["B", "L"])
    session = onnxruntime.InferenceSession(builder.model().SerializeToString(), providers=["CPUExecutionProvider"])
    found: list[list[int]] = session.run(["ids"], {"logits": logits})[0].tolist()
    return found


def test_the_largest_logit_is_picked() -> None:
    logits = np.random.default_rng(0).standard_normal((2, 3, VOCABULARY)).astype(np.float32) - 50
    assert picked(logits) == logits.argmax(-1).tolist()


def test_of_equal_logits_the_lowest_id_is_picked() -> None:
    logits = np.full((1, 4, VOCABULARY), -3.0, np.float32)
    logits[0, 1, [7, 500, 999]] = 2.0
    logits[0, 2, [998, 999]] = np.inf
    logits[0, 3] = -np.inf
    assert picked(logits) == [[0, 7, 998, 0]]


def test_a_row_of_no_numbers_gets_an_id_of_the_vocabulary() -> None:
    assert picked(np.full((1, 1, VOCABULARY), np.nan, np.float32)) == [[VOCABULARY - 1]]
