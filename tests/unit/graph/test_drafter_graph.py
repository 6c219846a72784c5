"""The drafter's graph against a torch head that recomputes its whole history at every step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peagle_trt.engine.protocol import DraftRows
from peagle_trt.verify.tolerances import TOLERANCES
from tests.support.drafter_reference import DrafterReference
from tests.support.models import HIDDEN, VOCABULARY, BuiltPair, open_pair, save_drafter, save_target

TOLERANCE = TOLERANCES["fp32"].logits
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "one-layer": {"num_hidden_layers": 1},
    "reduced-vocabulary": {"draft_vocab_size": 100},
    "norm-before-residual": {"norm_before_residual": True},
    "norm-before-fc": {"norm_before_fc": True},
    "fc-norm": {"fc_norm": True},
    "attention-bias": {"attention_bias": True},
}


@pytest.fixture(scope="module", params=CASES)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[BuiltPair, DrafterReference]:
    folder = tmp_path_factory.mktemp(request.param)
    save_target(folder / "target")
    tensors = save_drafter(folder / "drafter", **CASES[request.param])
    built = open_pair(folder / "target", folder / "drafter", folder / "build")
    embedding, lm_head = (np.asarray(built.target.weights.load(name)) for name in ("embed_tokens", "lm_head"))
    rows = tensors["d2t"] + np.arange(len(tensors["d2t"])) if "d2t" in tensors else slice(None)
    config = json.loads((folder / "drafter" / "config.json").read_text())
    return built, DrafterReference(tensors, config, embedding, lm_head[rows])


@pytest.mark.parametrize("draft_tokens", [1, 2, 5, 16])
def test_several_steps_equal_a_full_recompute(pair: tuple[BuiltPair, DrafterReference], draft_tokens: int) -> None:
    built, reference = pair
    history = History(seed=draft_tokens)
    for rows, accepted in ((20, 19), (draft_tokens + 1, 0), (draft_tokens + 1, draft_tokens), (draft_tokens + 1, 1)):
        item = history.advance(0, rows, accepted)
        found = built.engine.run_drafter([item], draft_tokens)
        expected = reference.draft_logits(history.tokens, np.array(history.hidden), draft_tokens)
        np.testing.assert_allclose(found.logits[0], expected, atol=TOLERANCE, rtol=0)
        wanted = built.engine.draft_to_target[expected.argmax(-1)]
        assert found.token_ids[0].tolist() == wanted.tolist()


@pytest.mark.parametrize("slots", [[1, 0], [6, 2, 4], [7, 6, 5, 4, 3, 2, 1, 0]])
def test_sequences_share_one_pass(pair: tuple[BuiltPair, DrafterReference], slots: list[int]) -> None:
    built, reference = pair
    histories = {slot: History(seed=slot) for slot in slots}
    for slot, history in histories.items():
        built.engine.run_drafter([history.advance(slot, 3 + 5 * slot, 2 + 5 * slot)], 1)
    items = [history.advance(slot, 6, slot % 6) for slot, history in histories.items()]
    found = built.engine.run_drafter(items, 5)
    for index, history in enumerate(histories.values()):
        expected = reference.draft_logits(history.tokens, np.array(history.hidden), 5)
        np.testing.assert_allclose(found.logits[index], expected, atol=TOLERANCE, rtol=0)


class History:
    """Rows a drafter has accepted so far, and the outcome of the next verify step."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.tokens: list[int] = []
        self.hidden: list[np.ndarray] = []

    def advance(self, slot: int, rows: int, accepted: int) -> DraftRows:
        tokens = self.rng.integers(3, VOCABULARY - 1, rows).astype(np.int32)
        hidden = self.rng.standard_normal((rows, 3 * HIDDEN)).astype(np.float32)
        start = len(self.tokens)
        self.tokens += tokens[: accepted + 1].tolist()
        self.hidden += list(hidden[: accepted + 1])
        hidden[accepted + 1 :] = np.nan
        return DraftRows(slot=slot, next_token_ids=tokens, hidden=hidden, num_accepted=accepted, start_position=start)


def test_more_slots_than_the_engine_takes_are_refused(tmp_path: Path) -> None:
    save_target(tmp_path / "target")
    save_drafter(tmp_path / "drafter")
    engine = open_pair(tmp_path / "target", tmp_path / "drafter", tmp_path / "build").engine
    item = History(0).advance(0, 3, 2)
    with pytest.raises(ValueError, match=r"expected 1\.\.16"):
        engine.run_drafter([item], 17)
