"""The batched drafter against a torch head that recomputes its whole history at every step."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.batched import BatchedDraft, BatchedPair, open_batched_pair
from tests.support.drafter_reference import DrafterReference, History
from tests.support.models import HIDDEN, save_drafter, save_target
from tests.unit.graph.test_drafter_graph import CASES

# Probabilities of float32 logits that are 5e-3 apart at most, as `TOLERANCES` allows.
TOLERANCE = 5e-3
CANDIDATES = 16


@pytest.fixture(scope="module", params=[(name, plugin) for name in CASES for plugin in (False, True)], ids=str)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[BatchedPair, DrafterReference]:
    case, uses_plugins = request.param
    folder = tmp_path_factory.mktemp(case)
    save_target(folder / "target")
    tensors = save_drafter(folder / "drafter", **CASES[case])
    built = open_batched_pair(
        folder / "target", folder / "drafter", folder / "build", uses_plugins=uses_plugins, max_batch_size=3
    )
    return built, reference_of(built, tensors, folder / "drafter")


def reference_of(built: BatchedPair, tensors: dict[str, np.ndarray], folder: Path) -> DrafterReference:
    embedding, lm_head = (np.asarray(built.target.weights.load(name)) for name in ("embed_tokens", "lm_head"))
    rows = tensors["d2t"] + np.arange(len(tensors["d2t"])) if "d2t" in tensors else slice(None)
    config = json.loads((folder / "config.json").read_text())
    embedding = tensors.get("embed_tokens.weight", embedding)
    return DrafterReference(tensors, config, embedding, tensors.get("lm_head.weight", lm_head[rows]))


@pytest.mark.parametrize("draft_tokens", [1, 5, 16])
def test_several_steps_equal_a_full_recompute(pair: tuple[BatchedPair, DrafterReference], draft_tokens: int) -> None:
    built, reference = pair
    history = History(seed=draft_tokens, width=width_of(built))
    for rows, accepted in ((20, 19), (draft_tokens + 1, 0), (draft_tokens + 1, draft_tokens), (draft_tokens + 1, 1)):
        item = history.advance(0, rows, accepted)
        found = built.engine.run_drafter([item], draft_tokens)
        check(built, found, 0, reference.draft_logits(history.tokens, np.array(history.hidden), draft_tokens))


def test_sequences_of_mixed_lengths_share_one_pass(pair: tuple[BatchedPair, DrafterReference]) -> None:
    built, reference = pair
    histories = {slot: History(seed=slot, width=width_of(built)) for slot in (2, 0)}
    for slot, history in histories.items():
        built.engine.run_drafter([history.advance(slot, 3 + 5 * slot, 2 + 5 * slot)], 1)
    items = [history.advance(slot, 6, slot) for slot, history in histories.items()]
    found = built.engine.run_drafter(items, 5)
    for index, history in enumerate(histories.values()):
        check(built, found, index, reference.draft_logits(history.tokens, np.array(history.hidden), 5))


def check(built: BatchedPair, found: BatchedDraft, index: int, logits_KD: np.ndarray) -> None:
    """Candidates are the largest logits in order, and probabilities their softmax among themselves."""
    order = np.argsort(-logits_KD, axis=-1, kind="stable")[:, :CANDIDATES]
    best = np.take_along_axis(logits_KD, order, axis=-1)
    assert found.candidate_ids[index].tolist() == target_ids(built)[order].tolist()
    expected = np.exp(best - best[:, :1])
    expected /= expected.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(found.probabilities[index], expected, atol=TOLERANCE, rtol=0)


def target_ids(built: BatchedPair) -> np.ndarray:
    if not built.drafter.config.has_vocabulary_map:
        return np.arange(built.drafter.config.draft_vocab_size)
    offsets = np.asarray(built.drafter.weights.load("d2t"))
    return offsets + np.arange(len(offsets))


def width_of(built: BatchedPair) -> int:
    return len(built.drafter.config.aux_layer_ids) * HIDDEN
