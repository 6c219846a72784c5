"""The worker with heads of odd shapes and requests that end early, against this project's own loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.fake_trtllm import installed
from tests.support.models import open_pair, save_drafter, save_target
from tests.support.trtllm_models import write_served_head
from tests.unit.trtllm.test_worker import loop_answers, run_worker

OWN = ("embed_tokens", "lm_head")
# More requests than slots; one-token prompts, prompts of several pieces, answers that end inside a step's tokens.
PROMPTS, LENGTHS = (1, 33, 2, 50, 1), [20, 1, 25, 2, 31]


@pytest.mark.parametrize(
    ("target", "drafter", "draft_tokens"),
    [
        ({"head_dim": 80}, {"head_dim": 80, "attention_bias": True, "mlp_bias": True, "carries": OWN}, 5),
        ({"tie_word_embeddings": True}, {"carries": ()}, 5),
        ({}, {"draft_vocab_size": 120, "carries": OWN}, 16),
        ({}, {"num_hidden_layers": 1, "attention_bias": True, "carries": (*OWN, "o_bias")}, 1),
    ],
    ids=["wide heads and biases", "the target's tables, tied", "fewer tokens, K=16", "one layer, K=1"],
)
def test_odd_shapes_draft_what_the_loop_drafts(
    tmp_path: Path, target: dict[str, Any], drafter: dict[str, Any], draft_tokens: int
) -> None:
    save_target(tmp_path / "target", **target)
    save_drafter(tmp_path / "drafter", **drafter)
    limits = {"draft_tokens": draft_tokens}
    pair = open_pair(tmp_path / "target", tmp_path / "drafter", tmp_path / "build", **limits)
    head = write_served_head(tmp_path / "target", tmp_path / "drafter", tmp_path / "served", **limits)
    rng = np.random.default_rng(5)
    prompts = [rng.integers(3, 290, length).tolist() for length in PROMPTS]
    expected = loop_answers(pair, prompts, draft_tokens, LENGTHS)
    with installed("1.4") as registry:
        from peagle_trt.trtllm.plugin import install

        install()
        options = {"overlaps": True, "chunk": 16, "graph_sizes": (1, 2, 4)}
        found = run_worker(pair, head, prompts, LENGTHS, draft_tokens, registry=registry, **options)
    for index, request in enumerate(found):
        steps = expected[str(index)]
        assert request.answer[: LENGTHS[index]] == [token for step in steps for token in step]
        assert request.steps[: len(steps) - 2] == [len(step) for step in steps[:-2]]
