"""The graph of a plain EAGLE-3 head, pass by pass, against a torch head that recomputes its whole history."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peagle_trt.engine.protocol import DraftOutput, DraftRows
from peagle_trt.engine.sequential import draft_in_turn
from peagle_trt.verify.tolerances import TOLERANCES
from tests.support.drafter_reference import DrafterReference, History
from tests.support.models import BuiltPair, open_pair, save_drafter, save_target

TOLERANCE = TOLERANCES["fp32"].logits
CASES: dict[str, dict[str, Any]] = {
    "one-layer": {"num_hidden_layers": 1},
    "two-layers-normed-output": {"norm_output": True},
    "norm-before-residual": {"num_hidden_layers": 1, "norm_before_residual": True, "draft_vocab_size": 100},
    "norm-before-fc": {"num_hidden_layers": 1, "norm_before_fc": True, "attention_bias": True},
    "fc-norm-window": {
        "fc_norm": True,
        "layer_types": ["full_attention", "sliding_attention"],
        "sliding_window": 7,
        "model_type": "qwen3",
    },
    "narrow-head": {"hidden_size": 32, "carries": ("embed_tokens", "lm_head")},
}


@pytest.fixture(scope="module", params=CASES)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[BuiltPair, DrafterReference]:
    folder = tmp_path_factory.mktemp(request.param)
    save_target(folder / "target")
    tensors = save_drafter(folder / "head", mask_token_id=None, **CASES[request.param])
    built = open_pair(folder / "target", folder / "head", folder / "build", max_batch_size=4)
    embedding, lm_head = (np.asarray(built.target.weights.load(name)) for name in ("embed_tokens", "lm_head"))
    rows = tensors["d2t"] + np.arange(len(tensors["d2t"])) if "d2t" in tensors else slice(None)
    config = json.loads((folder / "head" / "config.json").read_text())
    tables = tensors.get("embed_tokens.weight", embedding), tensors.get("lm_head.weight", lm_head[rows])
    return built, DrafterReference(tensors, config, *tables)


@pytest.mark.parametrize("draft_tokens", [1, 2, 5])
def test_several_steps_equal_a_full_recompute(pair: tuple[BuiltPair, DrafterReference], draft_tokens: int) -> None:
    built, reference = pair
    history = History(draft_tokens)
    for rows, accepted in ((20, 19), (draft_tokens + 1, 0), (draft_tokens + 1, draft_tokens), (draft_tokens + 1, 1)):
        drafts, logits = draft(built, [history.advance(0, rows, accepted)], [draft_tokens])
        expected = reference.sequential_logits(history.tokens, np.array(history.hidden), drafts[0][:-1])
        np.testing.assert_allclose(logits[0], expected, atol=TOLERANCE, rtol=0)
        assert drafts[0] == built.engine.draft_to_target[expected.argmax(-1)].tolist()


def test_sequences_that_want_different_numbers_of_drafts_share_passes(
    pair: tuple[BuiltPair, DrafterReference],
) -> None:
    built, reference = pair
    counts = {2: 1, 0: 4, 3: 2}
    histories = {slot: History(slot) for slot in counts}
    for slot, history in histories.items():
        built.engine.run_drafter([history.advance(slot, 3 + 5 * slot, 2 + 5 * slot)], 1)
    items = [history.advance(slot, 6, slot) for slot, history in histories.items()]
    drafts, logits = draft(built, items, list(counts.values()))
    for index, (slot, history) in enumerate(histories.items()):
        expected = reference.sequential_logits(history.tokens, np.array(history.hidden), drafts[index][:-1])
        assert len(drafts[index]) == counts[slot]
        np.testing.assert_allclose(logits[index], expected, atol=TOLERANCE, rtol=0)


def test_a_pass_continues_from_the_draft_that_was_chosen(pair: tuple[BuiltPair, DrafterReference]) -> None:
    built, reference = pair
    history = History(9)
    item = history.advance(0, 8, 7)
    drafts, logits = draft(built, [item], [3], rank=4)
    assert drafts != draft(built, [item], [3])[0]
    expected = reference.sequential_logits(history.tokens, np.array(history.hidden), drafts[0][:-1])
    np.testing.assert_allclose(logits[0], expected, atol=TOLERANCE, rtol=0)


def test_a_pass_drafts_one_token(pair: tuple[BuiltPair, DrafterReference]) -> None:
    with pytest.raises(ValueError, match="a pass of an EAGLE-3 head drafts 1"):
        pair[0].engine.run_drafter([History(0).advance(0, 3, 2)], 2)


def test_a_parallel_head_takes_no_further_pass(tmp_path: Path) -> None:
    save_target(tmp_path / "target")
    save_drafter(tmp_path / "head")
    engine = open_pair(tmp_path / "target", tmp_path / "head", tmp_path / "build", max_batch_size=1).engine
    with pytest.raises(ValueError, match="drafts all tokens in one pass"):
        engine.step_drafter([])


def draft(
    built: BuiltPair, rows: list[DraftRows], counts: list[int], rank: int = 1
) -> tuple[list[list[int]], list[np.ndarray]]:
    """Drafts and logits of every sequence; each draft is the `rank`-th likeliest token of its pass."""
    drafts: list[list[int]] = [[] for _ in rows]
    logits: list[list[np.ndarray]] = [[] for _ in rows]

    def choose(place: int, output: DraftOutput, index: int) -> int:
        assert output.logits is not None
        found = output.logits[index, 0].copy()
        logits[place].append(found)
        token = int(built.engine.draft_to_target[found.argsort()[-rank]])
        assert rank > 1 or token == output.token_ids[index, 0]
        drafts[place].append(token)
        return token

    assert draft_in_turn(built.engine, rows, counts, choose) == max(counts)
    return drafts, [np.array(each) for each in logits]
