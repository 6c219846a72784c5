"""The drafter's graph against a torch head that recomputes its whole history at every step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from peagle_trt.spec import DrafterConfig
from peagle_trt.verify.tolerances import TOLERANCES
from tests.support.drafter_reference import DrafterReference, History
from tests.support.models import HIDDEN, BuiltPair, open_pair, save_drafter, save_target

TOLERANCE = TOLERANCES["fp32"].logits
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "one-layer": {"num_hidden_layers": 1},
    "reduced-vocabulary": {"draft_vocab_size": 100},
    "norm-before-residual": {"norm_before_residual": True},
    "norm-before-fc": {"norm_before_fc": True},
    "fc-norm": {"fc_norm": True},
    "attention-bias": {"attention_bias": True},
    "output-bias": {"carries": ("o_bias",)},
    "mlp-bias": {"mlp_bias": True},
    "head-norms": {"model_type": "qwen3"},
    "one-window": {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 7},
    "own-tables": {"carries": ("embed_tokens", "lm_head")},
    "narrow-head": {"hidden_size": 32, "carries": ("embed_tokens", "lm_head")},
    "two-states": {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 5]}},
    "four-states-four-layers": {
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2, 4, 6]},
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": 3,
        "fc_norm": True,
    },
}
# Every setting of a head that is on or off, as a change of a plain one.
FLAGS: dict[str, dict[str, Any]] = {
    "norm_before_residual": {"norm_before_residual": True},
    "norm_before_fc": {"norm_before_fc": True},
    "has_fc_norm": {"fc_norm": True},
    "has_attention_bias": {"attention_bias": True},
    "has_output_bias": {"carries": ("o_bias",)},
    "has_mlp_bias": {"mlp_bias": True},
    "has_qk_norm": {"model_type": "qwen3"},
    "attention_windows": {"layer_types": ["sliding_attention"] * 2, "sliding_window": 4},
    "has_own_embeddings": {"carries": ("embed_tokens",)},
    "has_own_lm_head": {"carries": ("lm_head",)},
    "has_vocabulary_map": {"draft_vocab_size": 100},
}
# `is_parallel` is no setting of a drafter's graph, and `norm_output` none of a head with one pass.
SILENT = {"is_parallel", "norm_output"}


@pytest.fixture(scope="module", params=CASES)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[BuiltPair, DrafterReference]:
    folder = tmp_path_factory.mktemp(request.param)
    save_target(folder / "target")
    tensors = save_drafter(folder / "drafter", **CASES[request.param])
    built = open_pair(folder / "target", folder / "drafter", folder / "build")
    return built, reference_of(built, tensors, folder / "drafter")


def reference_of(built: BuiltPair, tensors: dict[str, np.ndarray], folder: Path) -> DrafterReference:
    embedding, lm_head = (np.asarray(built.target.weights.load(name)) for name in ("embed_tokens", "lm_head"))
    rows = tensors["d2t"] + np.arange(len(tensors["d2t"])) if "d2t" in tensors else slice(None)
    config = json.loads((folder / "config.json").read_text())
    embedding = tensors.get("embed_tokens.weight", embedding)
    return DrafterReference(tensors, config, embedding, tensors.get("lm_head.weight", lm_head[rows]))


@pytest.mark.parametrize("draft_tokens", [1, 2, 5, 16])
def test_several_steps_equal_a_full_recompute(pair: tuple[BuiltPair, DrafterReference], draft_tokens: int) -> None:
    built, reference = pair
    history = History(seed=draft_tokens, width=width_of(built))
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
    histories = {slot: History(seed=slot, width=width_of(built)) for slot in slots}
    for slot, history in histories.items():
        built.engine.run_drafter([history.advance(slot, 3 + 5 * slot, 2 + 5 * slot)], 1)
    items = [history.advance(slot, 6, slot % 6) for slot, history in histories.items()]
    found = built.engine.run_drafter(items, 5)
    for index, history in enumerate(histories.values()):
        expected = reference.draft_logits(history.tokens, np.array(history.hidden), 5)
        np.testing.assert_allclose(found.logits[index], expected, atol=TOLERANCE, rtol=0)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    folder = tmp_path_factory.mktemp("plain-head")
    save_target(folder / "target")
    save_drafter(folder / "drafter")
    return first_logits(open_pair(folder / "target", folder / "drafter", folder / "build"))


@pytest.mark.parametrize("flag", FLAGS)
def test_every_flag_changes_what_a_head_says(plain: np.ndarray, tmp_path: Path, flag: str) -> None:
    # Tensors are drawn by name, so the two heads differ in the flag alone.
    save_target(tmp_path / "target")
    tensors = save_drafter(tmp_path / "drafter", **FLAGS[flag])
    built = open_pair(tmp_path / "target", tmp_path / "drafter", tmp_path / "build")
    assert getattr(built.drafter.config, flag)
    changed = first_logits(built)
    assert changed.shape != plain.shape or np.abs(changed - plain).max() > 100 * TOLERANCE
    history = History(seed=3)
    history.advance(0, 20, 19)
    reference = reference_of(built, tensors, tmp_path / "drafter")
    expected = reference.draft_logits(history.tokens, np.array(history.hidden), 5)
    np.testing.assert_allclose(changed, expected, atol=TOLERANCE, rtol=0)


def test_every_flag_of_a_head_is_tried() -> None:
    fields = {field.name for field in msgspec.structs.fields(DrafterConfig) if field.type is bool}
    assert fields - SILENT == FLAGS.keys() - {"attention_windows"}


def first_logits(built: BuiltPair) -> np.ndarray:
    logits: np.ndarray = built.engine.run_drafter([History(seed=3).advance(0, 20, 19)], 5).logits[0]
    return logits


def width_of(built: BuiltPair) -> int:
    return len(built.drafter.config.aux_layer_ids) * HIDDEN


def test_more_slots_than_the_engine_takes_are_refused(tmp_path: Path) -> None:
    save_target(tmp_path / "target")
    save_drafter(tmp_path / "drafter")
    engine = open_pair(tmp_path / "target", tmp_path / "drafter", tmp_path / "build").engine
    item = History(0).advance(0, 3, 2)
    with pytest.raises(ValueError, match=r"expected 1\.\.16"):
        engine.run_drafter([item], 17)
